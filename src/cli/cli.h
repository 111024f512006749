/* Shared by the commands: flags, files, printing results. Results go to stdout, everything else to stderr. */
#pragma once

#include "base/arena.h"
#include "base/json.h"
#include "base/strbuf.h"
#include "config/config.h"
#include "run/program.h"

typedef enum FlagKind { FLAG_SWITCH, FLAG_TEXT, FLAG_INT, FLAG_FLOAT, FLAG_LIST } FlagKind;

/* A flag of a command. `out` points to, by FlagKind in order: bool, const char *, int64_t, double, StrList (may be given repeatedly). */
typedef struct Flag {
    const char *name; /* "--text" */
    FlagKind    kind;
    void       *out;
    const char *value; /* "FILE", for help; NULL for switches */
    const char *help;
} Flag;

/* A command's flags. takes_keys: words may be key=value, as in a run file. */
typedef struct CliFlags {
    Flag  *flags;
    size_t count;
    bool   takes_keys;
} CliFlags;

typedef struct CliArgs {
    Arena        arena;
    const char  *command;
    const char  *arguments; /* from commands.def */
    const char  *help;
    int          argc; /* argc, argv: the arguments after the verb */
    char       **argv;
    const char **words; /* the arguments that aren't flags of the command, in order */
    size_t       num_words;
    CliFlags    *out_flags; /* not NULL: cli_parse only adds the command's flags to it */
    Arena       *out_arena; /* arena for these flags */
} CliArgs;

/* Parses the arguments. --help prints help on stdout and sets *out_done: the command returns then. Flags take "--x value" and "--x=value".
 * config: words may also be a run file, --config and key=value, which config_load_args reads. Otherwise an unknown flag is ERR_INVALID with
 * the nearest name. */
NODISCARD Status cli_parse(CliArgs *args, const Flag *flags, size_t num_flags, bool config, bool *out_done);

/* Makes a config of defaults with one dataset at `path` (type=text). Words from index `first` on override it: each is key=value with a key
 * of a dataset or a run. */
NODISCARD Status cli_dataset_config(CliArgs *args, const char *path, size_t first, Config *out_config);

/* Prints the text of `surogate COMMAND --help`. */
NODISCARD Status cli_help(const char *command);

/* Adds a command's flags to *out without running it, each flag once. word: the word after the verb, which may decide the flags; NULL: none.
 * out->flags is in the arena; Flag.out is NULL. */
NODISCARD Status cli_flags(Arena *arena, const char *command, const char *word, CliFlags *out);

/* Appends a script for a shell (bash, zsh, fish) that completes verbs, flags, keys of run files and their values. */
NODISCARD Status cli_completions(const char *shell, StrBuf *out);

/* ERR_INVALID, with the command's arguments, unless there are exactly `count` words. */
NODISCARD Status cli_want_words(const CliArgs *args, size_t count);

/* Loads the run file and overrides among the words; problems and notes are printed on stderr. */
NODISCARD Status cli_config(const CliArgs *args, Config *out_config);

/* Finds the program with this name; the message of an error names the flag --program. */
#define CLI_PROGRAMS \
    "micro_first, micro_next, optimizer, calibrate, eval, logits, score, prefill, decode, load, or of ranks micro_last, micro_only, gather"
NODISCARD Status cli_find_program(const char *name, ProgramSpec *out);

/* Checks the flag --threads: from 0 to the most threads of a pool. */
NODISCARD Status cli_check_threads(int64_t threads);

/* Converts NAME=VALUE texts to an object of template variables. A value that parses as JSON (true, 3, ["a"]) is that value; any other is a
 * string. */
NODISCARD Status cli_variables(Arena *arena, const StrList *list, const JsonValue **out);

/* Writes to stdout; ERR_IO if it can't be written (a full disk, a closed pipe). On a terminal control characters are made visible; files
 * and pipes get all bytes unchanged. */
NODISCARD Status cli_print(const StrBuf *text);
NODISCARD Status cli_print_coloured(const StrBuf *text); /* text: its only control characters are our own colour codes */

/* The path to open for a file that a flag names: - becomes standard input. */
const char *cli_input_path(const char *path);

/* Lists the regular files of the folder `path`, sorted by name; if `path` is a file, that file alone. */
NODISCARD Status cli_list_files(Arena *arena, const char *path, const char ***out_paths, size_t *out_count);

#define COMMAND(id, name, arguments, help) NODISCARD Status cmd_##id(CliArgs *args);
#include "cli/commands.def"
#undef COMMAND
