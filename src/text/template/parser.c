/* What both halves of the parser use: tokens, nodes, errors. */
#include "text/template/ast.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

Status parser_fail(const Parser *p, Status status, int line, const char *fmt, ...)
{
    char    message[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(message, sizeof message, fmt, args);
    va_end(args);
    return status_fail(status, "%s:%d: %s", p->tmpl->name, line, message);
}

const char *token_describe(const Token *token, char *buffer, size_t size)
{
    static const char *const texts[] = {
        "end of template", "text", "'{{'", "'}}'", "'{%'", "'%}'", "a name", "a string", "an integer", "a float",
        "'+'", "'-'", "'*'", "'/'", "'//'", "'%'", "'**'", "'~'", "'=='", "'!='", "'<'", "'<='", "'>'", "'>='", "'in'", "'not in'",
        "'('", "')'", "'['", "']'", "'{'", "'}'", "'='", "'.'", "':'", "'|'", "','", "';'",
    };
    if (token->kind != T_NAME) return texts[token->kind];
    snprintf(buffer, size, "'%.*s'", (int)(token->value.len < 80 ? token->value.len : 80), token->value.text);
    return buffer;
}

Status parser_expect(Parser *p, TokenKind kind, Token *out)
{
    Token *token = parser_token(p), wanted = { .kind = kind };
    char   got[96], want[8];
    if (token->kind != kind || kind == T_EOF) {
        const char *name = kind == T_NAME ? "a name" : token_describe(&wanted, want, sizeof want);
        return parser_fail(p, ERR_INVALID, token->line, "expected %s, got %s", name, token_describe(token, got, sizeof got));
    }
    if (out) *out = *token;
    p->pos++;
    return OK;
}

bool parser_at_name(Parser *p, const char *name)
{
    Token *token = parser_token(p);
    return token->kind == T_NAME && str_equal(value_str(token->value), name);
}

bool parser_skip_name(Parser *p, const char *name)
{
    if (!parser_at_name(p, name)) return false;
    p->pos++;
    return true;
}

bool parser_skip(Parser *p, TokenKind kind)
{
    if (!parser_at(p, kind)) return false;
    p->pos++;
    return true;
}

Node *parser_node(Parser *p, NodeKind kind, int line)
{
    Node *node = arena_new(&p->tmpl->arena, Node);
    node->kind = (uint8_t)kind;
    node->line = line;
    return node;
}

void node_list_add(Parser *p, NodeList *list, Node *node)
{
    if (list->count == list->capacity) {
        uint32_t capacity = list->capacity ? list->capacity * 2 : 4;
        Node   **items = arena_array(&p->tmpl->arena, Node *, capacity);
        if (list->count) memcpy(items, list->items, list->count * sizeof *items);
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->count++] = node;
}
