/* surogate: the first argument chooses a command of commands.def. */
#include "cli/cli.h"

#include "base/log.h"
#include "base/variables.h"
#include "train/signals.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>

typedef struct Command {
    const char *name, *arguments, *help;
    Status (*run)(CliArgs *args);
} Command;

static const Command commands[] = {
#define COMMAND(id, name, arguments, help) {name, arguments, help, cmd_##id},
#include "cli/commands.def"
#undef COMMAND
};
enum { NUM_COMMANDS = sizeof commands / sizeof commands[0] };

static void print_usage(FILE *out)
{
    enum { OF_ARGUMENTS = 21, OF_HELP = 6 };
    StrBuf text = {0};
    strbuf_puts(&text, "surogate: trains language models\n\n");
    for (int i = 0; i < NUM_COMMANDS; i++) {
        strbuf_printf(&text, "  surogate %s", commands[i].name);
        strbuf_wrapped(&text, OF_ARGUMENTS, commands[i].arguments);
        strbuf_wrapped(&text, OF_HELP, commands[i].help);
    }
    fprintf(out, "%s\n`surogate COMMAND --help` says more. Keys of run files: `surogate help keys`\n", text.data);
    strbuf_deinit(&text);
}

static const Command *find_command(const char *name)
{
    for (int i = 0; i < NUM_COMMANDS; i++)
        if (strcmp(commands[i].name, name) == 0) return &commands[i];
    return NULL;
}

static Status unknown_command(const char *name)
{
    const char *names[NUM_COMMANDS];
    for (int i = 0; i < NUM_COMMANDS; i++) names[i] = commands[i].name;
    const char *near = nearest_name(name, names, NUM_COMMANDS);
    FAIL(ERR_INVALID, "there is no command %s%s%s%s; `surogate --help` lists them", name, near ? ", did you mean " : "", near ? near : "",
         near ? "?" : "");
}

/* Runs a command; `args` may already have out_flags set. */
static Status run_with(CliArgs args, const char *name, int argc, char **argv)
{
    const Command *command = find_command(name);
    if (!command) return unknown_command(name);
    args.command = command->name;
    args.arguments = command->arguments;
    args.help = command->help;
    args.argc = argc;
    args.argv = argv;
    Status status = command->run(&args);
    arena_deinit(&args.arena);
    return status;
}

static Status run(const char *name, int argc, char **argv)
{
    return run_with((CliArgs){0}, name, argc, argv);
}

Status cli_help(const char *command)
{
    char help[] = "--help";
    return run(command, 1, (char *[]){help});
}

Status cli_flags(Arena *arena, const char *command, const char *word, CliFlags *out)
{
    char *copy = arena_strdup(arena, word ? word : "");
    return run_with((CliArgs){.out_flags = out, .out_arena = arena}, command, word != NULL, &copy);
}

int main(int argc, char **argv)
{
    __builtin_cpu_init();
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) {
        fprintf(stderr, "error: this program needs a CPU with AVX2 and FMA (x86-64-v3: Intel since 2013, AMD since 2017)\n");
        return 1;
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* exceeding a file size limit is then a write error, like a full disk */
    signals_install();
    variables_check();
    if (argc < 2) {
        print_usage(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || (argc == 2 && strcmp(argv[1], "help") == 0)) {
        print_usage(stdout);
        return 0;
    }
    if (strcmp(argv[1], "--version") == 0) argv[1] = "version";
    Status status = run(argv[1], argc - 2, argv + 2);
    if (status == ERR_INTERRUPTED)
        log_info("%s", status_message());
    else if (status != OK && status_message()[0])
        log_error("%s", status_message());
    return status_exit_code(status);
}
