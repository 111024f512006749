/* Evaluates expressions by precedence climbing; depth is bounded so that no input overflows the stack. */
#include "ir/expr.h"

#include "base/dtype.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct Expr {
    const char *text, *p;
    ExprLookup  lookup;
    const void *context;
    int         depth;
    int         unused; /* above 0: in a branch whose value is discarded */
} Expr;

enum { EXPR_MAX_DEPTH = 64, EXPR_MAX_NAME = 128, EXPR_MAX_BYTES = 4096 };

static Status ternary(Expr *e, double *out);

static void blanks(Expr *e)
{
    while (*e->p == ' ') e->p++;
}

static bool accept(Expr *e, const char *token)
{
    blanks(e);
    size_t n = strlen(token);
    if (strncmp(e->p, token, n) != 0) return false;
    e->p += n;
    return true;
}

/* The value of a name, or of an entry of its list if [index] follows. */
static Status named(Expr *e, const char *name, double *out)
{
    double index;
    bool   indexed = accept(e, "[");
    if (indexed) TRY(ternary(e, &index));
    FAIL_IF(indexed && !accept(e, "]"), ERR_INVALID, "expression \"%s\": expected ] at \"%s\"", e->text, e->p);
    if (e->unused) index = 0; /* index 0 exists in every list */
    Status status = e->lookup(e->context, name, indexed ? &index : NULL, out);
    return status == OK ? OK : status_prefix(status, "expression \"%s\"", e->text);
}

static Status bracketed(Expr *e, double *out)
{
    TRY(ternary(e, out));
    FAIL_IF(!accept(e, ")"), ERR_INVALID, "expression \"%s\": expected ) at \"%s\"", e->text, e->p);
    return OK;
}

/* The nearest number that bf16 holds. */
static double round_bf16(double value)
{
    return (double)bf16_to_f32(bf16_from_f32((float)value));
}

/* Functions of one number or of two. */
static const struct {
    const char *name;
    double (*of_one)(double), (*of_two)(double, double);
} functions[] = {{"sqrt", sqrt, NULL}, {"log", log, NULL},  {"floor", floor, NULL}, {"ceil", ceil, NULL}, {"round_bf16", round_bf16, NULL},
                 {"pow", NULL, pow},   {"min", NULL, fmin}, {"max", NULL, fmax}};
enum { EXPR_FUNCTIONS = sizeof functions / sizeof *functions };

static Status called(Expr *e, const char *name, double *out)
{
    double first = 0;
    int    k = 0;
    while (k < EXPR_FUNCTIONS && strcmp(functions[k].name, name) != 0) k++;
    FAIL_IF(k == EXPR_FUNCTIONS, ERR_INVALID,
            "expression \"%s\": unknown function %s; expected sqrt, log, floor, ceil, round_bf16, pow, min or max", e->text, name);
    if (functions[k].of_two) {
        TRY(ternary(e, &first));
        FAIL_IF(!accept(e, ","), ERR_INVALID, "expression \"%s\": expected , at \"%s\"", e->text, e->p);
    }
    TRY(bracketed(e, out));
    *out = functions[k].of_two ? functions[k].of_two(first, *out) : functions[k].of_one(*out);
    return OK;
}

static Status primary(Expr *e, double *out)
{
    blanks(e);
    if (accept(e, "(")) return bracketed(e, out);
    if (isdigit((unsigned char)*e->p) || *e->p == '.') {
        char *end;
        *out = strtod(e->p, &end);
        FAIL_IF(end == e->p, ERR_INVALID, "expression \"%s\": bad number at \"%s\"", e->text, e->p);
        e->p = end;
        return OK;
    }
    char   name[EXPR_MAX_NAME];
    size_t n = 0;
    while ((isalnum((unsigned char)*e->p) || *e->p == '_') && n + 1 < sizeof name) name[n++] = *e->p++;
    name[n] = 0;
    FAIL_IF(!n, ERR_INVALID, "expression \"%s\": expected a number, name or ( at \"%s\"", e->text, e->p);
    return accept(e, "(") ? called(e, name, out) : named(e, name, out);
}

static Status unary(Expr *e, double *out)
{
    FAIL_IF(++e->depth > EXPR_MAX_DEPTH, ERR_INVALID, "expression \"%.40s…\" is nested too deeply", e->text);
    blanks(e);
    bool not = *e->p == '!' && e->p[1] != '=', minus = *e->p == '-';
    if (not || minus) {
        e->p++;
        TRY(unary(e, out));
        *out = not ? *out == 0 : -*out;
    } else {
        TRY(primary(e, out));
    }
    e->depth--;
    return OK;
}

/* Binary operators, loosest first. An operator of two characters comes before its own prefix (<= before <). */
static const struct {
    const char *token;
    int         level;
} operators[] = {{"||", 0}, {"&&", 1}, {"==", 2}, {"!=", 2}, {"<=", 3}, {">=", 3}, {"<", 3},
                 {">", 3},  {"+", 4},  {"-", 4},  {"*", 5},  {"/", 5},  {"%", 5}};
enum { EXPR_LEVELS = 6 };

static double apply(const char *token, double a, double b)
{
    switch (token[0]) {
    case '|':
        return a != 0 || b != 0;
    case '&':
        return a != 0 && b != 0;
    case '=':
        return a == b;
    case '!':
        return a != b;
    case '<':
        return token[1] ? a <= b : a < b;
    case '>':
        return token[1] ? a >= b : a > b;
    case '+':
        return a + b;
    case '-':
        return a - b;
    case '*':
        return a * b;
    case '/':
        return a / b;
    default:
        return fmod(a, b);
    }
}

static Status binary(Expr *e, int level, double *out)
{
    if (level == EXPR_LEVELS) return unary(e, out);
    TRY(binary(e, level + 1, out));
    for (;;) {
        const char *token = NULL;
        for (size_t i = 0; i < sizeof operators / sizeof operators[0] && !token; i++)
            if (operators[i].level == level && accept(e, operators[i].token)) token = operators[i].token;
        if (!token) return OK;
        double right;
        bool   decided = (token[0] == '&' && *out == 0) || (token[0] == '|' && *out != 0);
        e->unused += decided;
        TRY(binary(e, level + 1, &right));
        e->unused -= decided;
        *out = apply(token, *out, right);
    }
}

static Status ternary(Expr *e, double *out)
{
    FAIL_IF(++e->depth > EXPR_MAX_DEPTH, ERR_INVALID, "expression \"%.40s…\" is nested too deeply", e->text);
    TRY(binary(e, 0, out));
    if (accept(e, "?")) {
        double yes, no;
        bool   holds = *out != 0;
        e->unused += !holds;
        TRY(ternary(e, &yes));
        e->unused += holds - !holds;
        FAIL_IF(!accept(e, ":"), ERR_INVALID, "expression \"%s\": expected : at \"%s\"", e->text, e->p);
        TRY(ternary(e, &no));
        e->unused -= holds;
        *out = holds ? yes : no;
    }
    e->depth--;
    return OK;
}

Status expr_eval(const char *text, ExprLookup lookup, const void *context, double *out)
{
    Expr e = {.text = text, .p = text, .lookup = lookup, .context = context};
    FAIL_IF(strnlen(text, EXPR_MAX_BYTES + 1) > EXPR_MAX_BYTES, ERR_INVALID, "expression \"%.40s…\" is longer than %d bytes", text,
            EXPR_MAX_BYTES);
    TRY(ternary(&e, out));
    blanks(&e);
    FAIL_IF(*e.p, ERR_INVALID, "expression \"%s\": unexpected \"%s\"", text, e.p);
    return OK;
}
