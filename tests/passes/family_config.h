/* Compiles a config without weights, for the tests of passes. */
#pragma once

#include "files/file.h"
#include "ops/ops.h"
#include "passes/pass.h"
#include "run/session.h"
#include "test.h"

__attribute__((unused)) static Status compile_config(Arena *arena, const char *name, const char *architecture, const char *text, size_t len,
                                                     const CompileOptions *options, Device *device, Plan **out)
{
    JsonValue  *config = arena_new(arena, JsonValue);
    IrModule   *module;
    size_t      ir_len = 0;
    const char *ir = ir_shipped_module(architecture, &ir_len);
    TRY(json_parse(arena, name, text, len, config));
    TRY(ir_module_parse(arena, architecture, ir, ir_len, &module));
    return compile_plan(arena, module, config, name, options, device, out);
}

/* Adds one program of each kind. */
__attribute__((unused)) static void add_all_programs(CompileOptions *options, int64_t batch, int64_t seq, int64_t chunk)
{
    compile_add_training(options, batch, seq);
    compile_add(options, &entry_calibrate, batch, seq);
    compile_add(options, &entry_eval, 1, seq);
    compile_add(options, &entry_prefill, 1, chunk);
    compile_add(options, &entry_decode, 1, 1);
}

__attribute__((unused)) static Status read_fixture(Arena *arena, const char *family, Str *out_text, const char **out_architecture)
{
    char      path[256];
    JsonValue config;
    snprintf(path, sizeof path, "tests/fixtures/families/%s/config.json", family);
    TRY(file_read(arena, path, 1 << 20, out_text));
    TRY(json_parse(arena, path, out_text->data, out_text->len, &config));
    *out_architecture = json_get(&config, "architectures")->items[0].string.data;
    return OK;
}

__attribute__((unused)) static Status compile_fixture(Arena *arena, const char *family, const CompileOptions *options, Device *device,
                                                      Plan **out)
{
    Str         text;
    const char *architecture;
    TRY(read_fixture(arena, family, &text, &architecture));
    return compile_config(arena, family, architecture, text.data, text.len, options, device, out);
}

/* Binds and adapts the training graph, then fuses it; counts receives the number of fusions of each kind. */
__attribute__((unused)) static Status fixture_forward_graph(Arena *arena, const char *family, const CompileOptions *options, Device *device,
                                                            int counts[FUSION_COUNT])
{
    Str         text;
    const char *architecture;
    size_t      ir_len = 0;
    JsonValue  *config = arena_new(arena, JsonValue);
    IrModule   *module;
    Graph      *graph = NULL;
    TRY(read_fixture(arena, family, &text, &architecture));
    const char *ir = ir_shipped_module(architecture, &ir_len);
    TRY(json_parse(arena, family, text.data, text.len, config));
    TRY(ir_module_parse(arena, architecture, ir, ir_len, &module));
    Program     program = {.spec = options->programs[0], .name = "micro_first"};
    Plan        plan = {0};
    PassContext context = {.arena = arena,
                           .plan = &plan,
                           .module = module,
                           .config = config,
                           .config_name = family,
                           .options = options,
                           .device = device,
                           .program = &program};
    TRY(pass_bind(&context, &graph));
    TRY(pass_adapt(&context, &graph));
    return fuse_graph(graph, 0, counts);
}
