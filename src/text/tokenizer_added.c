/* Finds added tokens, before all other steps. At each position the longest token is taken, and the search goes on after it. */
#include "text/tokenizer_internal.h"

#include "base/array.h"

#include <stdlib.h>
#include <string.h>

void added_trie_deinit(AddedTrie *trie)
{
    free(trie->nodes);
    free(trie->tokens);
    *trie = (AddedTrie){0};
}

static int32_t node_new(AddedTrie *trie, uint8_t byte, int32_t next)
{
    trie->nodes = array_room(trie->nodes, (size_t)trie->num_nodes + 1, &trie->node_capacity, sizeof *trie->nodes);
    trie->nodes[trie->num_nodes] = (TrieNode){.next = next, .token = -1, .byte = byte};
    return trie->num_nodes++;
}

/* The child of `node` for a byte; 0: none. */
static int32_t node_child(const AddedTrie *trie, int32_t node, uint8_t byte)
{
    if (node == 0) return trie->first[byte];
    int32_t child = trie->nodes[node].child;
    while (child && trie->nodes[child].byte != byte) child = trie->nodes[child].next;
    return child;
}

void added_trie_add(AddedTrie *trie, AddedToken token)
{
    if (token.content.len == 0) return;
    if (trie->num_nodes == 0) node_new(trie, 0, 0);
    int32_t node = 0;
    for (size_t i = 0; i < token.content.len; i++) {
        uint8_t byte = (uint8_t)token.content.data[i];
        int32_t child = node_child(trie, node, byte);
        if (!child) {
            child = node_new(trie, byte, node ? trie->nodes[node].child : 0);
            if (node) {
                trie->nodes[node].child = child;
            } else {
                trie->first[byte] = child;
            }
        }
        node = child;
    }
    if (trie->nodes[node].token >= 0) return; /* if two tokens have the same text, the first one counts */
    trie->tokens = array_room(trie->tokens, (size_t)trie->num_tokens + 1, &trie->token_capacity, sizeof *trie->tokens);
    trie->nodes[node].token = trie->num_tokens;
    trie->tokens[trie->num_tokens++] = token;
}

/* The longest token that begins at text[at]; NULL: none. */
static const AddedToken *longest_at(const AddedTrie *trie, Str text, size_t at)
{
    const AddedToken *found = NULL;
    int32_t           node = 0;
    while (at < text.len && (node = node_child(trie, node, (uint8_t)text.data[at++])) != 0)
        if (trie->nodes[node].token >= 0) found = &trie->tokens[trie->nodes[node].token];
    return found;
}

static void split_push(AddedSplits *out, size_t start, size_t end, int32_t id)
{
    out->data = array_room(out->data, out->len + 1, &out->capacity, sizeof *out->data);
    out->data[out->len++] = (AddedSplit){start, end, id};
}

static uint8_t flags_before(const CharTable *table, Str text, size_t at)
{
    size_t size;
    return char_flags(table, utf8_decode(text.data + utf8_back(text.data, at), &size));
}

static uint8_t flags_after(const CharTable *table, Str text, size_t at)
{
    size_t size;
    return char_flags(table, utf8_decode(text.data + at, &size));
}

static bool stands_alone(const CharTable *table, Str text, size_t start, size_t end)
{
    return (start == 0 || !(flags_before(table, text, start) & CHAR_WORD)) &&
           (end == text.len || !(flags_after(table, text, end) & CHAR_WORD));
}

void added_split(const AddedTrie *trie, const CharTable *table, Str text, bool plain_special, AddedSplits *out)
{
    size_t done = 0, at = 0;
    out->len = 0;
    while (trie->num_tokens > 0) {
        while (at < text.len && trie->first[(uint8_t)text.data[at]] == 0) at++;
        if (at == text.len) break;
        const AddedToken *token = longest_at(trie, text, at);
        if (!token) {
            at++;
            continue;
        }
        size_t start = at, end = at + token->content.len;
        at = end;
        if (plain_special && token->special) continue;
        if (token->single_word && !stands_alone(table, text, start, end)) continue;
        if (token->lstrip) {
            while (start > done && (flags_before(table, text, start) & CHAR_SPACE)) start = utf8_back(text.data, start);
        }
        if (token->rstrip) {
            if (end < done) end = done; /* the previous token already took this white space */
            while (end < text.len && (flags_after(table, text, end) & CHAR_SPACE)) end += utf8_size((uint8_t)text.data[end]);
        }
        if (done < start) split_push(out, done, start, -1);
        split_push(out, start, end, token->id);
        done = end;
    }
    if (done < text.len) split_push(out, done, text.len, -1);
}
