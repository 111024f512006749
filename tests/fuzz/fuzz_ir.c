/* Input: a module, a NUL, a config.json, perhaps a NUL and an objective whose teacher is the same model. Any bytes are bound or refused, in
 * bounded time and memory. A resulting graph verifies, and its text parses to the same text. */
#include "ir/module.h"
#include "ops/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_graph(Arena *arena, const Graph *graph)
{
    StrBuf first = {0}, second = {0};
    Graph *again;
    if (graph_verify(graph) != OK) {
        fprintf(stderr, "%s\n", status_message());
        abort();
    }
    graph_print(graph, &first);
    if (graph_parse(arena, "again", first.data, first.len, op_table, OP_COUNT, &again) != OK) {
        fprintf(stderr, "%s\n%s", status_message(), strbuf_cstr(&first));
        abort();
    }
    graph_print(again, &second);
    if (first.len != second.len || memcmp(first.data, second.data, first.len) != 0) abort();
    strbuf_deinit(&first);
    strbuf_deinit(&second);
}

/* Binds the training program of the objective in `text`. */
static Status bind_objective(Arena *arena, const IrModule *model, const JsonValue *config, const char *text, size_t len,
                             const BindOptions *options, Graph **out)
{
    IrModule   *objective, *linked;
    IrNamespace teacher = {"teacher", model, config, "config"};
    TRY(ir_objective_parse(arena, "objective", text, len, &objective));
    TRY(ir_module_link(arena, model, objective, &teacher, 1, &linked));
    return ir_program_bind(arena, linked, config, "config", options, "loss", out);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char default_config[] = "{\"c\": 8, \"n\": 2, \"type\": \"a\"}";
    const uint8_t    *nul = size ? memchr(data, 0, size) : NULL;
    size_t            len = nul ? (size_t)(nul - data) : size;
    const char       *text = nul ? (const char *)nul + 1 : default_config;
    size_t            text_len = nul ? size - len - 1 : strlen(default_config);
    const char       *second = nul ? memchr(text, 0, text_len) : NULL, *objective = second ? second + 1 : NULL;
    size_t            objective_len = second ? (size_t)(text + text_len - objective) : 0;
    Arena             arena = {0};
    IrModule         *module;
    JsonValue         config;
    Graph            *graph;
    BindOptions       options = {
              .graph_name = "fuzz", .batch = 2, .seq = 8, .max_len = 16, .dtype = DT_F32, .ops = op_table, .num_ops = OP_COUNT, .max_work = 4096};
    if (ir_module_parse(&arena, "fuzz", (const char *)data, len, &module) == OK &&
        json_parse(&arena, "config", text, second ? (size_t)(second - text) : text_len, &config) == OK) {
        Status status = objective ? bind_objective(&arena, module, &config, objective, objective_len, &options, &graph)
                                  : ir_module_bind(&arena, module, &config, "config", &options, &graph);
        if (status == OK) check_graph(&arena, graph);
    }
    arena_deinit(&arena);
    return 0;
}
