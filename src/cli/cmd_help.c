/* surogate help keys [KEY], help schema, help completions SHELL, help COMMAND. */
#include "cli/cli.h"

#include <string.h>

/* Prints all keys of run files as Markdown, as a JSON Schema or as text; if words name keys, prints the help of these keys. */
static Status print_keys(const CliArgs *args, bool markdown, bool schema)
{
    StrBuf out = {0};
    Status status = OK;
    if (markdown)
        config_markdown(&out);
    else if (schema)
        config_schema(&out);
    else if (args->num_words == 1)
        config_keys(&out);
    for (size_t i = 1; i < args->num_words && status == OK; i++) status = config_help(&out, args->words[i]);
    if (status == OK) status = cli_print(&out);
    strbuf_deinit(&out);
    return status;
}

static Status print_completions(const char *shell)
{
    StrBuf out = {0};
    Status status = cli_completions(shell, &out);
    if (status == OK) status = cli_print(&out);
    strbuf_deinit(&out);
    return status;
}

Status cmd_help(CliArgs *args)
{
    bool       markdown = false, schema = false, done;
    const Flag flags[] = {
        {"--markdown", FLAG_SWITCH, &markdown, NULL, "help keys: docs/reference/config.md"},
        {"--schema", FLAG_SWITCH, &schema, NULL, "help keys: the same as help schema"},
    };
    TRY(cli_parse(args, flags, 2, false, &done));
    if (done) return OK;
    const char *topic = args->num_words > 0 ? args->words[0] : "";
    if (strcmp(topic, "keys") == 0) return print_keys(args, markdown, schema);
    if (strcmp(topic, "schema") == 0 && args->num_words == 1) return print_keys(args, false, true);
    if (strcmp(topic, "completions") == 0 && args->num_words == 2) return print_completions(args->words[1]);
    FAIL_IF(args->num_words != 1 || strcmp(topic, "completions") == 0, ERR_INVALID, "usage: surogate %s %s", args->command,
            args->arguments);
    return cli_help(topic);
}
