/* What the commands share: flags, files, printing results. Results go to stdout, all else to stderr. */
#pragma once

#include "base/arena.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "config/config.h"
#include "run/program.h"

typedef enum FlagKind { FLAG_SWITCH, FLAG_TEXT, FLAG_INT, FLAG_FLOAT, FLAG_LIST } FlagKind;

/* One flag of a command. `out`: bool *, const char **, int64_t *, double *, StrList * (a flag that may come several times). */
typedef struct Flag {
    const char *name; /* "--text" */
    FlagKind    kind;
    void       *out;
    const char *value; /* "FILE", for help; NULL for switches */
    const char *help;
} Flag;

/* A command's flags. takes_keys: words may be key=value of a run file. */
typedef struct CliFlags {
    Flag  *flags;
    size_t count;
    bool   takes_keys;
} CliFlags;

typedef struct CliArgs {
    Arena        arena;
    const char  *command;
    const char  *arguments; /* of commands.def */
    const char  *help;
    int          argc; /* what follows the verb */
    char       **argv;
    const char **words; /* what is no flag of the command, in order */
    size_t       num_words;
    CliFlags    *out_flags; /* not NULL: cli_parse adds its flags here, reads nothing and is done */
    Arena       *out_arena; /* that they live in */
} CliArgs;

/* --help prints help on stdout and sets *out_done. Flags take "--x value" and "--x=value". `config`: words may be a run file,
 * --config and key=value, which config_load_args reads; else an unknown flag is ERR_INVALID with the nearest name. */
NODISCARD Status cli_parse(CliArgs *args, const Flag *flags, size_t num_flags, bool config, bool *out_done);

/* The dataset keys (type=text) and run keys among the words from `first` on, over defaults, with one dataset of that path. */
NODISCARD Status cli_dataset_config(CliArgs *args, const char *path, size_t first, Config *out_config);

/* What `surogate COMMAND --help` prints. */
NODISCARD Status cli_help(const char *command);

/* Adds the flags of a command to *out, those that it takes behind `word` (NULL: none), once each; nothing is run. out->flags is of the
 * arena, and `out` of its flags is NULL. */
NODISCARD Status cli_flags(Arena *arena, const char *command, const char *word, CliFlags *out);

/* A script for a shell (bash, zsh, fish) that completes verbs, flags, keys of run files and their values. */
NODISCARD Status cli_completions(const char *shell, StrBuf *out);

/* Exactly `count` words, else ERR_INVALID that shows the command's arguments. */
NODISCARD Status cli_want_words(const CliArgs *args, size_t count);

/* The run file and overrides among the words; problems and notes are printed on stderr. */
NODISCARD Status cli_config(const CliArgs *args, Config *out_config);

/* The program of that name; --program is what the message names. */
#define CLI_PROGRAMS \
    "micro_first, micro_next, optimizer, calibrate, eval, logits, score, prefill, decode, load, or of ranks micro_last, micro_only, gather"
NODISCARD Status cli_find_program(const char *name, ProgramSpec *out);

/* Of the flag --threads: 0 to as many as a pool has. */
NODISCARD Status cli_check_threads(int64_t threads);

/* NAME=VALUE texts as an object of a template's variables: a value that reads as JSON is that (true, 3, ["a"]), any other is
 * text. */
NODISCARD Status cli_variables(Arena *arena, const StrList *list, const JsonValue **out);

/* stdout; ERR_IO when it can't be written (a full disk, a closed pipe). On a terminal control characters are made visible; a file or a pipe
 * gets every byte as it is. */
NODISCARD Status cli_print(const StrBuf *text);
NODISCARD Status cli_print_coloured(const StrBuf *text); /* of text whose only control characters are our colours */

/* The path of a file that a flag names: - is standard input. */
const char *cli_input_path(const char *path);

/* Regular files of a folder, sorted by name, or the one file. */
NODISCARD Status cli_list_files(Arena *arena, const char *path, const char ***out_paths, size_t *out_count);

#define COMMAND(id, name, arguments, help) NODISCARD Status cmd_##id(CliArgs *args);
#include "cli/commands.def"
#undef COMMAND
