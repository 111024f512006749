/* The parsed template: a tree in the template's arena; names are interned. */
#pragma once

#include "text/template/template.h"
#include "text/template/value.h"

#include <setjmp.h>

/* Maximum nesting of expressions and blocks in a template (Python's compiler gives up earlier). */
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
    Value     value; /* T_NAME, T_STRING, T_DATA: the text; T_INTEGER, T_FLOAT: the number */
} Token;

/* Names that macros and loops define themselves. */
typedef enum Special { SPECIAL_CALLER, SPECIAL_KWARGS, SPECIAL_VARARGS, SPECIAL_LOOP, NUM_SPECIAL } Special;

/* A name that a scope itself mentions (not only an inner scope), by the rules of Jinja's idtracking. When the scope is entered, the name
 * becomes a variable of the scope. It starts with the value of the outer variable of that name, if there is one; else, if it `resolves`,
 * with the render's variable; else undefined. */
typedef struct Symbol {
    uint32_t name;
    bool     is_parameter; /* set by the code that enters the scope */
    bool     is_stored;
    bool     resolves; /* it is read before it is stored, or first stored inside an if */
} Symbol;
typedef struct Scope {
    Symbol       *symbols;
    uint32_t      count, capacity;
    struct Scope *outer;    /* the enclosing scope; only set while parsing */
    int           branches; /* number of ifs of this scope around the parser's position */
} Scope;

typedef struct Node Node;
typedef struct Nodes {
    Node   **items;
    uint32_t count, capacity;
} Nodes;

struct Node {
    uint8_t               kind; /* a NodeKind */
    uint8_t               op;   /* a TokenKind: the operator of N_BINARY, or of N_KEYWORD (in comparisons and arguments) */
    int32_t               line;
    uint32_t              name;      /* interned name: N_NAME, N_GETATTR, N_KEYWORD, N_NSREF, N_MACRO, N_FILTER, N_TEST */
    uint32_t              attribute; /* interned attribute name: N_NSREF */
    bool                  negated, recursive;
    bool                  uses[NUM_SPECIAL]; /* N_MACRO, N_CALLBLOCK, N_GENERATION: whether its body mentions each special name */
    const struct Builtin *builtin;           /* N_FILTER, N_TEST: NULL: unknown; N_GETATTR: first row of methods with that name */
    Value                 value;             /* N_CONST, N_DATA */
    Node  *a, *b, *c; /* operands; for: target, iterable, filter; if: condition, next elif; others: target or call, filters */
    Nodes  items;     /* elements, arguments (positional, keywords, *, **), parameters, or targets */
    Nodes  values;    /* defaults of parameters, values of with, or values of a dict */
    Nodes  body, orelse;
    Scope *scope, *test_scope, *else_scope; /* scopes of the body, of a loop's filter, of a loop's else */
};

/* Interned names: each distinct name has one number. */
enum { NAME_BUCKETS = 1024 };
typedef struct NameTable {
    Str      *names;
    uint32_t *next; /* next name in the same bucket: its number + 1; 0: none */
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
    Dict     *folder_variables;      /* from tokenizer_config.json; NULL: none */
    Value    *base_context;          /* (names.count) variables at the start of a render: functions and the folder's variables */
    int64_t   now_unix;              /* time for inputs that give none; 0: the clock */
    Template *with_tools;            /* template for conversations with tools; NULL: this template */
    char     *tools_error;           /* why with_tools can't be read; NULL: no error */
    uint32_t  specials[NUM_SPECIAL]; /* the numbers of the special names */
    uint32_t  inputs[4];             /* numbers of the names messages, tools, documents, add_generation_prompt; UINT32_MAX: not mentioned */
};

/* State of the lexer and the parser. All memory is allocated in the template's arena, so parser_fail can longjmp out of any depth. */
typedef struct Parser {
    Template   *tmpl;
    jmp_buf     failed;
    Status      status;
    const char *text;
    size_t      len, at; /* at: the lexer's position */
    int         line;
    bool        line_starting; /* whether the text that the lexer read last ended with a newline */
    Token      *tokens;
    uint32_t    num_tokens, capacity;
    size_t      pos;   /* index of the parser's next token */
    int         depth; /* current nesting */
    int         loops; /* number of enclosing loops; break and continue are allowed if > 0 */
    int         soft;  /* number of enclosing ifs and inline ifs; unknown filters in them are only errors when they are reached */
    Scope      *scope;
    bool        in_target; /* a target is being parsed: its names are noted later */
    bool        in_for;    /* inside a for: assigning to the name loop isn't allowed */
    Node       *function;  /* the enclosing macro, call block or generation; NULL: none */
    const Node *unknown;   /* the first unknown filter or test outside all ifs; NULL: none */
} Parser;

_Noreturn void parser_fail(Parser *p, Status status, int line, const char *fmt, ...) PRINTF_LIKE(4, 5);

/* lex.c: stores all tokens of the text in p->tokens; the last one is T_EOF. */
void template_lex(Parser *p);

/* parse.c: parses the tokens into tmpl->body. */
void template_parse_tokens(Parser *p);

/* template.c: computes base_context and inputs; to be called after folder_variables changed. */
void template_prepare(Template *tmpl);

/* The number of a name. If the name is new, template_intern adds it, and template_find_name returns UINT32_MAX. */
uint32_t template_intern(Template *tmpl, Str name);
uint32_t template_find_name(const Template *tmpl, Str name);

/* Functions of expr.c. */
Node  *parser_node(Parser *p, NodeKind kind, int line);
void   nodes_add(Parser *p, Nodes *nodes, Node *node);
Token *parser_expect(Parser *p, TokenKind kind);
/* How error messages name a token. */
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
void     parser_note(Parser *p, uint32_t name, bool is_parameter, bool is_stored); /* adds or updates the name's symbol in p->scope */
void     parser_deeper(Parser *p);                                                 /* p->depth++; fails beyond the limit */

/* Options of parse_tuple. */
typedef struct TupleOptions {
    bool simplified, no_condexpr, parentheses, with_namespace;
} TupleOptions;
Node *parse_tuple(Parser *p, TupleOptions options);
Node *parse_expression(Parser *p);
Node *parse_target(Parser *p, bool with_namespace);
Node *parse_filter_chain(Parser *p, Node *node, bool start_inline);
void  parser_check_unknown(Parser *p); /* fails if p->unknown is set */
