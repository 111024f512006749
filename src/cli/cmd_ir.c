/* surogate ir run.yaml --after PASS --program NAME: the graph as text. */
#include "cli/cli.h"

#include "passes/pass.h"
#include "setup/setup.h"

#include <string.h>

typedef struct Wanted {
    const char *pass;    /* NULL: the last */
    const char *program;
    StrBuf      text;
} Wanted;

static void keep_graph(void *context, const char *pass, const Graph *graph)
{
    Wanted *wanted = context;
    if (strcmp(graph->name, wanted->program) != 0 || (wanted->pass && strcmp(pass, wanted->pass) != 0)) return;
    strbuf_clear(&wanted->text);
    graph_print(graph, &wanted->text);
}

static Status check_pass(const char *name)
{
    const char *names[64];
    int         count = pass_count() < 64 ? pass_count() : 64;
    StrBuf      all = { 0 };
    for (int i = 0; i < count; i++) {
        names[i] = pass_name(i);
        if (strcmp(names[i], name) == 0) {
            strbuf_deinit(&all);
            return OK;
        }
        strbuf_printf(&all, "%s%s", i ? ", " : "", names[i]);
    }
    Status status = status_fail(ERR_INVALID, "--after %s: there is no pass of that name; expected one of %s", name, strbuf_cstr(&all));
    strbuf_deinit(&all);
    return status;
}

static Status print_graph(Arena *arena, const Config *config, Wanted *wanted)
{
    HfModel       *model;
    CompileOptions options;
    ProgramKind    kind;
    Device        *device;
    Plan          *plan;
    TRY(cli_find_program(wanted->program, &kind));
    if (wanted->pass) TRY(check_pass(wanted->pass));
    TRY(setup_model(arena, config, &model));
    TRY(setup_options(config, model, &options));
    options.programs = 1u << kind;
    if (kind == PROGRAM_OPTIMIZER) options.programs |= 1u << PROGRAM_MICRO_FIRST;
    options.after_pass = keep_graph;
    options.after_pass_context = wanted;
    TRY(device_null_create(NULL, &device));
    Status status = setup_plan(arena, model, &options, device, &plan);
    device->api->destroy(device);
    hf_model_close(model);
    TRY(status);
    FAIL_IF(!wanted->text.len, ERR_INVALID, "--after %s: this pass doesn't run for %s", wanted->pass ? wanted->pass : "", wanted->program);
    return cli_print(&wanted->text);
}

Status cmd_ir(CliArgs *args)
{
    Wanted     wanted = { .program = "micro_first" };
    bool       done;
    const Flag flags[] = {
        { "--after", FLAG_TEXT, &wanted.pass, "PASS", "bind, adapt, fuse, ... (the last one)" },
        { "--program", FLAG_TEXT, &wanted.program, "NAME", "micro_first, micro_next, optimizer, eval, prefill or decode (micro_first)" },
    };
    TRY(cli_parse(args, flags, 2, true, &done));
    if (done) return OK;
    Config config;
    Arena  arena = { 0 };
    TRY(cli_config(args, &config));
    Status status = print_graph(&arena, &config, &wanted);
    strbuf_deinit(&wanted.text);
    arena_deinit(&arena);
    config_deinit(&config);
    return status;
}
