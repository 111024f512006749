/* The parsed template: a tree in the template's arena, names interned. */
#pragma once

#include "text/template/template.h"
#include "text/template/value.h"

#include <setjmp.h>

/* Deepest nesting of a template's expressions and blocks (Python's compiler gives up earlier). */
enum { TEMPLATE_MAX_NESTING = 200, TEMPLATE_MAX_BYTES = 8 << 20 };

typedef enum NodeKind {
#define EXPRESSION(kind, function) kind,
#define STATEMENT(kind, function) kind,
#include "text/template/nodes.def"
    NUM_NODES
} NodeKind;

typedef enum TokenKind {
#define TOKEN(kind, text) kind,
#include "text/template/tokens.def"
    NUM_TOKENS
} TokenKind;
extern const char *const token_texts[];

typedef struct Token {
    TokenKind kind;
    int       line;
    Value     value; /* T_NAME, T_STRING, T_DATA: the text; T_INTEGER, T_FLOAT */
} Token;

/* Names that macros and loops set by themselves. */
typedef enum Special { SPECIAL_CALLER, SPECIAL_KWARGS, SPECIAL_VARARGS, SPECIAL_LOOP, NUM_SPECIAL } Special;

/* A name that a scope mentions by itself, not within an inner scope, by Jinja's rules (its idtracking). On entry it becomes a
 * variable of the scope: one that is stored starts as the variable of that name around, if there is one, else undefined, or, when
 * it `resolves`, as the render's; one that is only read does so if there is none around. */
typedef struct Symbol {
    uint32_t name;
    bool     is_parameter; /* set by who enters */
    bool     is_stored;
    bool     resolves; /* read before it is stored, or first stored inside of an if */
} Symbol;
typedef struct Scope {
    Symbol       *symbols;
    uint32_t      count, capacity;
    struct Scope *outer;    /* while the parser is in it */
    int           branches; /* ifs around the parser's place */
} Scope;

typedef struct Node Node;
typedef struct Nodes {
    Node   **items;
    uint32_t count, capacity;
} Nodes;

struct Node {
    uint8_t               kind; /* NodeKind */
    uint8_t               op;   /* TokenKind of N_BINARY and of compare operands and keywords */
    int32_t               line;
    uint32_t              name;      /* interned: N_NAME, N_GETATTR, N_KEYWORD, N_NSREF, N_MACRO, N_FILTER, N_TEST */
    uint32_t              attribute; /* interned, of N_NSREF */
    bool                  negated, recursive;
    bool                  uses[NUM_SPECIAL]; /* N_MACRO, N_CALLBLOCK, N_GENERATION: the special names it mentions */
    const struct Builtin *builtin;           /* N_FILTER, N_TEST: NULL unknown. N_GETATTR: the first method of the name */
    Value                 value;             /* N_CONST, N_DATA */
    Node                 *a, *b, *c; /* operands; target, iterable, filter of a loop; condition and next elif of an if; of blocks: target or
                                        call, filters */
    Nodes  items;                    /* elements, arguments (positional, keywords, *, **), parameters, targets */
    Nodes  values;                   /* defaults, values, dict values */
    Nodes  body, orelse;
    Scope *scope, *test_scope, *else_scope; /* of the body; of a loop's filter and else */
};

/* Each name once, by number. */
enum { NAME_BUCKETS = 1024 };
typedef struct NameTable {
    Str      *names;
    uint32_t *next; /* of the same bucket, + 1 */
    uint32_t  count, names_capacity, next_capacity;
    uint32_t  buckets[NAME_BUCKETS];
} NameTable;

struct Template {
    Arena     arena;
    char     *name;
    NameTable names;
    Scope     scope;
    Nodes     body;
    uint64_t  hash;
    Dict     *folder_variables;      /* from tokenizer_config.json; NULL */
    Value    *base_context;          /* (names.count) functions and the folder's variables: what a render starts from */
    int64_t   now_unix;              /* for inputs that name no time; 0: the clock */
    Template *with_tools;            /* renders conversations with tools; NULL: this one does */
    char     *tools_error;           /* why it can't be read; NULL */
    uint32_t  specials[NUM_SPECIAL]; /* their names */
    uint32_t  inputs[4];             /* names of TemplateInput's messages, tools, documents, add_generation_prompt; UINT32_MAX: not read */
};

/* What reads a template. All its memory is the template's, so that a failure leaves by parser_fail, from wherever it is. */
typedef struct Parser {
    Template   *tmpl;
    jmp_buf     failed;
    Status      status;
    const char *text;
    size_t      len, at; /* the lexer's place */
    int         line;
    bool        line_starting; /* the lexer's last match ended with a newline */
    Token      *tokens;
    uint32_t    num_tokens, capacity;
    size_t      pos;   /* the parser's token */
    int         depth; /* nesting now */
    int         loops; /* break and continue are allowed when > 0 */
    int         soft;  /* ifs and inline ifs around: what is unknown there may stand as long as it isn't reached */
    Scope      *scope;
    bool        in_target; /* its names are noted later */
    bool        in_for;    /* inside of a for: nothing there may be named loop */
    Node       *function;  /* the macro, call block or generation around; NULL */
    const Node *unknown;   /* a filter or test outside of every if so far; NULL */
} Parser;

_Noreturn void parser_fail(Parser *p, Status status, int line, const char *fmt, ...) PRINTF_LIKE(4, 5);

/* lex.c: all tokens of the text, T_EOF last. */
void template_lex(Parser *p);

/* parse.c: the tree, into tmpl->body. */
void template_parse_tokens(Parser *p);

/* template.c: base_context and inputs, after a change of folder_variables. */
void template_prepare(Template *tmpl);

/* The number of a name, which is added when it isn't there; template_find_name: UINT32_MAX then. */
uint32_t template_intern(Template *tmpl, Str name);
uint32_t template_find_name(const Template *tmpl, Str name);

/* expr.c */
Node  *parser_node(Parser *p, NodeKind kind, int line);
void   nodes_add(Parser *p, Nodes *nodes, Node *node);
Token *parser_expect(Parser *p, TokenKind kind);
/* What messages call a token. */
typedef struct TokenText {
    char text[96];
} TokenText;
TokenText            token_describe(const Token *token);
static inline Token *parser_token(Parser *p)
{
    return &p->tokens[p->pos];
}
static inline bool parser_at(Parser *p, TokenKind kind)
{
    return p->tokens[p->pos].kind == kind;
}
bool     parser_at_name(Parser *p, const char *name);
bool     parser_skip_name(Parser *p, const char *name);
bool     parser_skip(Parser *p, TokenKind kind);
uint32_t parser_intern(Parser *p, const Token *name);
void     parser_note(Parser *p, uint32_t name, bool is_parameter, bool is_stored); /* a symbol of p->scope */
void     parser_deeper(Parser *p);                                                 /* p->depth++, within its limit */

/* How parse_tuple reads. */
typedef struct TupleOptions {
    bool simplified, no_condexpr, parentheses, with_namespace;
} TupleOptions;
Node *parse_tuple(Parser *p, TupleOptions options);
Node *parse_expression(Parser *p);
Node *parse_target(Parser *p, bool with_namespace);
Node *parse_filter_chain(Parser *p, Node *node, bool start_inline);
void  parser_check_unknown(Parser *p); /* fails when there is an unknown filter or test */
