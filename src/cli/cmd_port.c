/* surogate port axolotl.yaml --out run.yaml: converts another tool's run file to one of ours. */
#include "cli/cli.h"

#include "base/log.h"
#include "files/file.h"
#include "port/port.h"

#include <string.h>

/* Refuses to overwrite a file: it may be the original. */
static Status write_out(const char *path, const StrBuf *text)
{
    bool there;
    TRY(file_exists(path, &there));
    FAIL_IF(there, ERR_INVALID, "%s is there already; remove it, or name another file", path);
    TRY(file_write_atomic(path, strbuf_cstr(text), text->len));
    log_info("wrote %s", path);
    return OK;
}

static void say_problems(const char *text)
{
    for (; *text; text += strcspn(text, "\n"), text += *text == '\n') log_error("%.*s", (int)strcspn(text, "\n"), text);
}

Status cmd_port(CliArgs *args)
{
    PortOptions options = {0};
    const char *out = NULL;
    bool        done;
    const Flag  flags[] = {
         {"--from", FLAG_TEXT, &options.from, "TOOL", "whose file it is: axolotl, llamafactory, llamafactory-v1 or trl (by its keys)"},
         {"--out", FLAG_TEXT, &out, "FILE", "where to write the run file (stdout)"},
         {"--dataset-dir", FLAG_TEXT, &options.dataset_dir, "DIR", "folder of LLaMA-Factory's dataset_info.json (dataset_dir of the file)"},
    };
    TRY(cli_parse(args, flags, sizeof flags / sizeof *flags, false, &done));
    if (done) return OK;
    TRY(cli_want_words(args, 1));
    StrBuf  text = {0}, problems = {0};
    StrList lost = {0};
    Status  status = port_file(&args->arena, args->words[0], &options, &text, &lost, &problems);
    if (status != OK && problems.len) {
        say_problems(problems.data);
        status_clear();
    }
    if (status == OK) status = out ? write_out(out, &text) : cli_print(&text);
    for (size_t i = 0; status == OK && i < lost.count; i++) log_warn("%s: %s", args->words[0], lost.items[i]);
    strbuf_deinit(&text);
    strbuf_deinit(&problems);
    return status;
}
