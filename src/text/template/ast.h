/* The parsed template: a tree in the template's arena, names interned, variables resolved to slots. */
#pragma once

#include "text/template/template.h"
#include "text/template/value.h"

/* Deepest nesting of a template's expressions and blocks (Python's compiler gives up earlier). */
enum { TEMPLATE_MAX_NESTING = 200, TEMPLATE_MAX_BYTES = 8 << 20 };

typedef enum NodeKind {
    /* expressions */
    N_CONST, N_NAME, N_LIST, N_TUPLE, N_DICT, N_GETATTR, N_GETITEM, N_SLICE, N_CALL, N_FILTER, N_TEST, N_CONDEXPR,
    N_BINARY, N_CONCAT, N_COMPARE, N_AND, N_OR, N_NOT, N_NEG, N_POS, N_NSREF, N_KEYWORD,
    /* statements */
    N_DATA, N_PRINT, N_IF, N_FOR, N_SET, N_SETBLOCK, N_MACRO, N_CALLBLOCK, N_FILTERBLOCK, N_WITH, N_GENERATION,
    N_SCOPE, N_BREAK, N_CONTINUE
} NodeKind;

typedef enum TokenKind {
    T_EOF, T_DATA, T_VARIABLE_BEGIN, T_VARIABLE_END, T_BLOCK_BEGIN, T_BLOCK_END,
    T_NAME, T_STRING, T_INTEGER, T_FLOAT,
    T_ADD, T_SUB, T_MUL, T_DIV, T_FLOORDIV, T_MOD, T_POW, T_TILDE,
    T_EQ, T_NE, T_LT, T_LE, T_GT, T_GE, T_IN, T_NOTIN, /* the last two only as operators of N_COMPARE */
    T_LPAREN, T_RPAREN, T_LBRACKET, T_RBRACKET, T_LBRACE, T_RBRACE, T_ASSIGN, T_DOT, T_COLON, T_PIPE, T_COMMA, T_SEMICOLON
} TokenKind;

typedef struct Token {
    TokenKind kind;
    int       line;
    Value     value; /* T_NAME, T_STRING, T_DATA: the text; T_INTEGER, T_FLOAT */
} Token;

/* A variable: `hops` functions out (root, macro, call block and recursive loop are functions), then a slot. */
typedef struct VarRef {
    uint16_t hops;
    uint32_t slot;
} VarRef;

/* How a scope sets one of its variables when entered. */
typedef enum LoadKind { LOAD_PARAMETER, LOAD_RESOLVE, LOAD_ALIAS, LOAD_UNDEFINED } LoadKind;
typedef struct ScopeLoad {
    LoadKind kind;
    uint32_t slot, name;
    VarRef   alias;
} ScopeLoad;

typedef struct Scope {
    ScopeLoad *loads;
    uint32_t   count;
    uint32_t   num_slots; /* of the function it starts; 0 when it starts none */
} Scope;

typedef struct Node  Node;
typedef struct Nodes {
    Node   **items;
    uint32_t count;
} Nodes;

struct Node {
    uint8_t  kind;     /* NodeKind */
    uint8_t  op;       /* TokenKind of N_BINARY and compare operands */
    uint16_t height;   /* of the tree below */
    int32_t  line;
    uint32_t name;     /* interned: N_NAME, N_GETATTR, N_KEYWORD, N_NSREF, N_MACRO */
    uint32_t index;    /* N_FILTER, N_TEST: in its table, UINT32_MAX unknown. N_NSREF: the attribute. Macro: num params */
    bool     store;    /* N_NAME: a target */
    bool     negated, recursive, uses_caller, uses_kwargs, uses_varargs, has_star, has_star_star;
    bool     needs_dict_args; /* a call with keywords or stars */
    Value    value;    /* N_CONST, N_DATA */
    VarRef   var;      /* N_NAME, N_NSREF, N_MACRO; N_FOR: the loop variable */
    VarRef   caller, kwargs, varargs; /* of a macro or a generation block */
    Node    *a, *b, *c; /* operands; target, iterable, filter test of a loop; condition and next elif of an if */
    Node    *test_target; /* of a loop with a filter */
    Nodes    items;    /* elements, arguments (positional, keywords, *, **), parameters, targets */
    Nodes    values;   /* defaults, values, dict values */
    Nodes    body, orelse;
    Scope   *scope, *test_scope, *else_scope;
};

typedef struct NameTable {
    Str      *names;
    uint32_t  count, capacity;
    uint32_t *buckets; /* index + 1 */
    uint32_t  num_buckets;
} NameTable;

struct Template {
    Arena     arena;
    char     *name;
    NameTable names;
    Scope    *root_scope;
    Nodes     body;
    uint64_t  hash;
    Dict     *folder_variables; /* from tokenizer_config.json; NULL */
    Value    *base_context;     /* (names.count) functions and the folder's variables: what a render starts from */
    int64_t   now_unix;         /* for inputs that name no time; 0: the clock */
    uint32_t  inputs[4];        /* names of TemplateInput's messages, tools, documents, add_generation_prompt; UINT32_MAX: not read */
};

/* template_lex.c: all tokens of the source, T_EOF last. The source is UTF-8. */
NODISCARD Status template_lex(Template *tmpl, const char *source, size_t len, Token **out_tokens, size_t *out_count);

/* template_parse.c: the tree, into tmpl->body. */
NODISCARD Status template_parse_tokens(Template *tmpl, Token *tokens);

/* template_scope.c: gives every name its slot and every scope its loads. */
NODISCARD Status template_resolve(Template *tmpl);

/* template.c: base_context and inputs, after a change of folder_variables. */
void template_prepare(Template *tmpl);

/* Index of an interned name; the names of methods come first, in the order of MethodId. */
uint32_t template_intern(Template *tmpl, Str name);

/* Parser state, shared by template_parse.c (statements) and template_expr.c. */
typedef struct Parser {
    Template *tmpl;
    Token    *tokens;
    size_t    pos;
    int       depth;      /* nesting now */
    int       loops;      /* break and continue are allowed when > 0 */
    bool      in_for;     /* inside of a for: nothing there may be named loop */
} Parser;

typedef struct NodeList {
    Node   **items;
    uint32_t count, capacity;
} NodeList;

NODISCARD Status parser_fail(const Parser *p, Status status, int line, const char *fmt, ...) PRINTF_LIKE(4, 5);
NODISCARD Status parser_expect(Parser *p, TokenKind kind, Token *out); /* out may be NULL */
Node            *parser_node(Parser *p, NodeKind kind, int line);
void             node_list_add(Parser *p, NodeList *list, Node *node);
static inline Token *parser_token(Parser *p) { return &p->tokens[p->pos]; }
static inline bool   parser_at(Parser *p, TokenKind kind) { return p->tokens[p->pos].kind == kind; }
bool parser_at_name(Parser *p, const char *name);
bool parser_skip_name(Parser *p, const char *name);
bool parser_skip(Parser *p, TokenKind kind);
const char *token_describe(const Token *token, char *buffer, size_t size);

/* How parse_tuple reads. */
typedef struct TupleOptions {
    bool simplified, no_condexpr, parentheses, with_namespace;
} TupleOptions;
NODISCARD Status parse_tuple(Parser *p, TupleOptions options, Node **out);
NODISCARD Status parse_expression(Parser *p, Node **out);
NODISCARD Status parse_target(Parser *p, bool with_namespace, Node **out);
NODISCARD Status parse_filter_chain(Parser *p, Node *node, bool start_inline, Node **out);
