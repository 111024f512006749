/* surogate ir run.yaml --after PASS --program NAME: prints the graph as text. surogate ir FILE.ir --pass NAME: prints a graph's text after
 * a pass. */
#include "cli/cli.h"

#include "files/file.h"
#include "passes/alone.h"
#include "passes/pass.h"
#include "setup/setup.h"

#include <string.h>

typedef struct Wanted {
    const char *pass; /* NULL: the last pass */
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

enum { MAX_TEXT = 256 << 20 };

static Status run_alone(Arena *arena, CliArgs *args, const StrList *passes)
{
    Str         text;
    StrBuf      out = {0};
    const char *path = args->num_words == 1 ? args->words[0] : "";
    FAIL_IF(args->num_words != 1, ERR_INVALID, "--pass reads the text of one graph: surogate ir FILE.ir --pass NAME (- is standard input)");
    TRY(file_read_stream(arena, cli_input_path(path), MAX_TEXT, &text));
    Status status = passes_run_alone(arena, strcmp(path, "-") == 0 ? "<stdin>" : path, text.data, text.len,
                                     (const char *const *)passes->items, passes->count, &out);
    if (status == OK) status = cli_print(&out);
    strbuf_deinit(&out);
    return status;
}

static Status print_graph(Arena *arena, const Config *config, Wanted *wanted)
{
    HfModel       *model;
    CompileOptions options;
    ProgramSpec    spec;
    Device        *device;
    Plan          *plan;
    TRY(cli_find_program(wanted->program, &spec));
    int index;
    if (wanted->pass && pass_find(wanted->pass, &index) != OK) return status_prefix(ERR_INVALID, "--after");
    TRY(setup_view_model(arena, config, &model));
    TRY(setup_options(arena, config, model, &options));
    options.num_programs = 0;
    setup_add_program(config, model, spec, &options);
    if (spec.entry->source == ENTRY_OF_UPDATE || spec.entry->source == ENTRY_OF_WEIGHTS)
        setup_add_program(config, model, program_micro(0, 2, options.world), &options);
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
    Wanted     wanted = {0};
    StrList    passes = {0};
    bool       done;
    const Flag flags[] = {
        {"--after", FLAG_TEXT, &wanted.pass, "PASS", "bind, adapt, fuse, ... (the last one)"},
        {"--program", FLAG_TEXT, &wanted.program, "NAME", CLI_PROGRAMS " (micro_first)"},
        {"--pass", FLAG_LIST, &passes, "PASS",
         "reads the text of a graph (FILE.ir, or -) in place of a run file, and prints it after this pass; may be given several times"},
    };
    TRY(cli_parse(args, flags, 3, true, &done));
    if (done) return OK;
    FAIL_IF(passes.count && (wanted.pass || wanted.program), ERR_INVALID,
            "--pass goes without --after and --program: the line # option program=NAME of the text says what the graph is of");
    Config config;
    Arena  arena = {0};
    if (passes.count) {
        Status status = run_alone(&arena, args, &passes);
        arena_deinit(&arena);
        return status;
    }
    if (!wanted.program) wanted.program = "micro_first";
    TRY(cli_config(args, &config));
    Status status = print_graph(&arena, &config, &wanted);
    strbuf_deinit(&wanted.text);
    arena_deinit(&arena);
    config_deinit(&config);
    return status;
}
