/* Any text is a graph or refused. A graph that parses and verifies prints as text; parsing and printing that text gives the same text. */
#include "ops/ops.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    Arena  arena = {0};
    StrBuf first = {0}, second = {0};
    Graph *graph, *again;
    if (graph_parse(&arena, "fuzz", (const char *)data, size, op_table, OP_COUNT, &graph) == OK && graph_verify(graph) == OK) {
        graph_print(graph, &first);
        if (graph_parse(&arena, "again", first.data, first.len, op_table, OP_COUNT, &again) != OK || graph_verify(again) != OK) abort();
        graph_print(again, &second);
        if (first.len != second.len || memcmp(first.data, second.data, first.len) != 0) abort();
        for (int i = 0; i < again->num_values; i++)
            if (!value_root(again->values[i], NULL)) abort();
        for (const Node *node = again->first; node; node = node->next) {
            if (node->op->cost) (void)node->op->cost(node);
            if (node->op->workspace) (void)node->op->workspace(node, 2);
        }
    }
    strbuf_deinit(&first);
    strbuf_deinit(&second);
    arena_deinit(&arena);
    return 0;
}
