/* Command lines. */
#include "cli/cli.h"

#include "base/log.h"
#include "base/pool.h"
#include "base/visible.h"
#include "config/options.h"
#include "files/file.h"
#include "port/port.h"
#include "setup/lora.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static Status print_help(const CliArgs *args, const Flag *flags, size_t num_flags, bool config)
{
    enum { OF_ARGUMENTS = 4, OF_HELP = 27 };
    StrBuf out = {0};
    strbuf_printf(&out, "surogate %s", args->command);
    strbuf_wrapped(&out, OF_ARGUMENTS, args->arguments);
    strbuf_putc(&out, '\n');
    strbuf_wrapped(&out, 0, args->help);
    if (num_flags) strbuf_putc(&out, '\n');
    for (size_t i = 0; i < num_flags; i++) {
        size_t begin = out.len;
        strbuf_printf(&out, "  %s%s%s", flags[i].name, flags[i].value ? " " : "", flags[i].value ? flags[i].value : "");
        if (out.len - begin >= OF_HELP) strbuf_putc(&out, '\n');
        strbuf_wrapped(&out, OF_HELP, flags[i].help);
    }
    if (config) {
        strbuf_putc(&out, '\n');
        strbuf_wrapped(&out, 0, "A run file may also be given with --config; key=value overrides its keys (docs/reference/config.md).");
        strbuf_wrapped(&out, 0, CONFIG_ALLOW_PYTHON ": its model may be a Python file, which is run (docs/dsl.md).");
    }
    Status status = cli_print(&out);
    strbuf_deinit(&out);
    return status;
}

/* For a flag such as --max-steps that is a key of run files: "max_steps=VALUE"; else NULL. value: the flag's value, or NULL. */
static const char *key_for_flag(Arena *arena, const char *word, const char *value)
{
    char *key = arena_strdup(arena, word + 2);
    for (char *at = key; *at; at++)
        if (*at == '-') *at = '_';
    bool known = option_find(SCOPE_run, key) != NULL;
    for (size_t i = 0; i < num_option_aliases && !known; i++)
        known = option_aliases[i].scope == SCOPE_run && strcmp(option_aliases[i].name, key) == 0;
    return known ? arena_printf(arena, "%s=%s", key, value ? value : "VALUE") : NULL;
}

static Status unknown_flag(const CliArgs *args, const Flag *flags, size_t num_flags, const char *word)
{
    const char *names[64];
    size_t      count = 0;
    char        name[256];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(word, "="), word);
    for (size_t i = 0; i < num_flags && count < 63; i++) names[count++] = flags[i].name;
    names[count++] = "--help";
    const char *near = nearest_name(name, names, count);
    FAIL(ERR_INVALID, "surogate %s has no flag %s%s%s%s; `surogate %s --help` lists them", args->command, name,
         near ? ", did you mean " : "", near ? near : "", near ? "?" : "", args->command);
}

static Status set_flag(CliArgs *args, const Flag *flag, const char *value)
{
    char *end = NULL;
    errno = 0;
    switch (flag->kind) {
    case FLAG_SWITCH:
        *(bool *)flag->out = true;
        return OK;
    case FLAG_TEXT:
        *(const char **)flag->out = value;
        return OK;
    case FLAG_LIST:
        str_list_push(&args->arena, flag->out, value);
        return OK;
    case FLAG_INT:
        *(int64_t *)flag->out = strtoll(value, &end, 10);
        break;
    case FLAG_FLOAT:
        *(double *)flag->out = strtod(value, &end);
        break;
    }
    FAIL_IF(end == value || *end || errno, ERR_INVALID, "surogate %s: %s %s: expected a %snumber", args->command, flag->name, value,
            flag->kind == FLAG_INT ? "whole " : "");
    return OK;
}

static const Flag *find_flag(const Flag *flags, size_t num_flags, const char *word)
{
    size_t len = strcspn(word, "=");
    for (size_t i = 0; i < num_flags; i++)
        if (strlen(flags[i].name) == len && strncmp(flags[i].name, word, len) == 0) return &flags[i];
    return NULL;
}

static Status read_flag(CliArgs *args, const Flag *flag, int *at)
{
    const char *word = args->argv[*at], *equals = strchr(word, '=');
    if (flag->kind == FLAG_SWITCH) {
        FAIL_IF(equals, ERR_INVALID, "surogate %s: %s takes no value", args->command, flag->name);
        return set_flag(args, flag, NULL);
    }
    if (equals) return set_flag(args, flag, equals + 1);
    FAIL_IF(*at + 1 >= args->argc, ERR_INVALID, "surogate %s: %s needs a value: %s %s", args->command, flag->name, flag->name, flag->value);
    return set_flag(args, flag, args->argv[++*at]);
}

static void add_flags(Arena *arena, const Flag *flags, size_t num_flags, bool config, CliFlags *out)
{
    Flag *all = arena_array(arena, Flag, out->count + num_flags + 1);
    if (out->count) memcpy(all, out->flags, out->count * sizeof *all);
    out->flags = all;
    out->takes_keys |= config;
    for (size_t i = 0; i < num_flags; i++) {
        if (find_flag(all, out->count, flags[i].name)) continue;
        all[out->count] = flags[i];
        all[out->count++].out = NULL; /* `out` points to a variable that ends with the command */
    }
}

Status cli_parse(CliArgs *args, const Flag *flags, size_t num_flags, bool config, bool *out_done)
{
    *out_done = args->out_flags != NULL;
    if (args->out_flags) {
        add_flags(args->out_arena, flags, num_flags, config, args->out_flags);
        return OK;
    }
    args->words = arena_array(&args->arena, const char *, args->argc + 1);
    bool only_words = false;
    for (int i = 0; i < args->argc; i++) {
        const char *word = args->argv[i];
        if (!only_words && (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)) {
            TRY(print_help(args, flags, num_flags, config));
            *out_done = true;
            return OK;
        }
        const Flag *flag = only_words ? NULL : find_flag(flags, num_flags, word);
        if (flag) {
            TRY(read_flag(args, flag, &i));
        } else if (!only_words && strcmp(word, "--") == 0 && !config) {
            only_words = true;
        } else if (config && strncmp(word, "--", 2) == 0 && !strchr(word, '=') && strcmp(word, "--config") != 0 &&
                   strcmp(word, CONFIG_ALLOW_PYTHON) != 0) {
            const char *key = key_for_flag(&args->arena, word, i + 1 < args->argc ? args->argv[i + 1] : NULL);
            FAIL_IF(key, ERR_INVALID, "surogate %s has no flag %s; write %s", args->command, word, key);
            return unknown_flag(args, flags, num_flags, word);
        } else if (!only_words && strncmp(word, "--", 2) == 0 && !config) {
            return unknown_flag(args, flags, num_flags, word);
        } else {
            args->words[args->num_words++] = word;
            if (config && strcmp(word, "--config") == 0 && i + 1 < args->argc) args->words[args->num_words++] = args->argv[++i];
        }
    }
    return OK;
}

Status cli_want_words(const CliArgs *args, size_t count)
{
    FAIL_IF(args->num_words != count, ERR_INVALID, "usage: surogate %s %s", args->command, args->arguments);
    return OK;
}

static void say_lines(void (*say)(const char *fmt, ...), const char *text)
{
    while (*text) {
        int len = (int)strcspn(text, "\n");
        say("%.*s", len, text);
        text += len + (text[len] == '\n');
    }
}

/* Logs a line if the run file is another tool's. config NULL: the file was refused; else the line has that tool's differing defaults. */
static void say_port(const char *const *words, size_t count, const Config *config)
{
    const char *path = config_run_file(words, count);
    StrBuf      text = {0};
    if (config)
        port_differences(path, config, &text);
    else
        port_hint(path, &text);
    if (text.len && config)
        log_info("%s", text.data);
    else if (text.len)
        log_error("%s", text.data);
    strbuf_deinit(&text);
}

static Status load_config(const char *const *words, size_t count, Config *out_config)
{
    StrBuf problems = {0};
    Status status = config_load_args(words, count, out_config, &problems);
    if (status != OK && problems.len) {
        say_lines(log_error, strbuf_cstr(&problems));
        say_port(words, count, NULL);
        status_clear();
    }
    if (status == OK && out_config->notes && out_config->notes[0]) say_lines(log_info, out_config->notes);
    for (size_t i = 0; status == OK && i < out_config->warnings.count; i++) log_warn("%s", out_config->warnings.items[i]);
    strbuf_deinit(&problems);
    return status;
}

Status cli_config(const CliArgs *args, Config *out_config)
{
    TRY(load_config(args->words, args->num_words, out_config));
    say_port(args->words, args->num_words, out_config);
    Status status = setup_adapter(out_config);
    if (status != OK) config_deinit(out_config);
    return status;
}

Status cli_dataset_config(CliArgs *args, const char *path, size_t first, Config *out_config)
{
    size_t       count = 1;
    const char **words = arena_array(&args->arena, const char *, args->num_words + 1);
    words[0] = arena_printf(&args->arena, "datasets.0.path=%s", path);
    for (size_t i = first; i < args->num_words; i++) {
        const char *word = args->words[i], *equals = strchr(word, '=');
        FAIL_IF(!equals, ERR_INVALID, "argument \"%.200s\": expected a key of a dataset, as type=conversation", word);
        const char *key = arena_strndup(&args->arena, word, strcspn(word, "=."));
        words[count++] = option_find(SCOPE_run, key) ? word : arena_printf(&args->arena, "datasets.0.%s", word);
    }
    return load_config(words, count, out_config);
}

Status cli_check_threads(int64_t threads)
{
    FAIL_IF(threads < 0 || threads > POOL_MOST_WORKERS, ERR_INVALID, "--threads %lld: expected 1 to %d, or 0 for all cores",
            (long long)threads, POOL_MOST_WORKERS);
    return OK;
}

Status cli_variables(Arena *arena, const StrList *list, const JsonValue **out)
{
    JsonValue *object = arena_new(arena, JsonValue);
    *object = (JsonValue){.type = JSON_OBJECT, .count = (uint32_t)list->count, .members = arena_array(arena, JsonMember, list->count + 1)};
    for (size_t i = 0; i < list->count; i++) {
        const char *equals = strchr(list->items[i], '=');
        FAIL_IF(!equals || equals == list->items[i], ERR_INVALID, "--var %s: expected NAME=VALUE", list->items[i]);
        JsonMember *member = &object->members[i];
        member->key = str_of(arena_strndup(arena, list->items[i], (size_t)(equals - list->items[i])));
        if (json_parse(arena, "", equals + 1, strlen(equals + 1), &member->value) == OK) continue;
        status_clear();
        member->value = (JsonValue){.type = JSON_STRING, .string = str_of(equals + 1)};
    }
    *out = object;
    return OK;
}

static Status print(const StrBuf *text)
{
    if ((!text->len || fwrite(text->data, 1, text->len, stdout) == text->len) && fflush(stdout) == 0) return OK;
    if (errno == EPIPE) { /* the reader closed the pipe on purpose: no message */
        status_clear();
        return ERR_IO;
    }
    return file_fail("write", "the result");
}

Status cli_print(const StrBuf *text)
{
    if (!isatty(STDOUT_FILENO)) return print(text);
    StrBuf shown = {0};
    visible_append(&shown, strbuf_cstr(text), text->len);
    Status status = print(&shown);
    strbuf_deinit(&shown);
    return status;
}

Status cli_print_coloured(const StrBuf *text)
{
    return print(text);
}

const char *cli_input_path(const char *path)
{
    return strcmp(path, "-") == 0 ? "/dev/stdin" : path;
}

Status cli_list_files(Arena *arena, const char *path, const char ***out_paths, size_t *out_count)
{
    const char **names;
    size_t       count;
    bool         is_dir;
    *out_count = 0;
    TRY(file_is_dir(path, &is_dir));
    if (!is_dir) {
        *out_paths = arena_array(arena, const char *, 1);
        (*out_paths)[(*out_count)++] = path;
        return OK;
    }
    TRY(file_list(arena, path, &names, &count));
    *out_paths = names;
    for (size_t i = 0; i < count; i++) {
        const char *name = arena_printf(arena, "%s/%s", path, names[i]);
        if (names[i][0] == '.') continue;
        TRY(file_is_dir(name, &is_dir));
        if (!is_dir) (*out_paths)[(*out_count)++] = name;
    }
    FAIL_IF(*out_count == 0, ERR_INVALID, "%s: a folder without files", path);
    return OK;
}

Status cli_find_program(const char *name, ProgramSpec *out)
{
    ProgramSpec specs[MOST_SPECS];
    const char *names[MOST_SPECS];
    int         count = program_specs(specs);
    for (int i = 0; i < count; i++) {
        names[i] = program_spec_name(&specs[i]);
        *out = specs[i];
        if (strcmp(names[i], name) == 0) return OK;
    }
    const char *near = nearest_name(name, names, (size_t)count);
    FAIL(ERR_INVALID, "--program %s: there is none of that name%s%s%s; expected " CLI_PROGRAMS, name, near ? ", did you mean " : "",
         near ? near : "", near ? "?" : "");
}
