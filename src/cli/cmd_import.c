/* surogate import FILE.gguf OUT_DIR: writes a model folder from a GGUF file; all other commands read it. */
#include "cli/cli.h"

#include "base/log.h"
#include "files/folder.h"
#include "model/gguf_import.h"

static Status refuse_used(Arena *arena, const char *out)
{
    bool is_model;
    TRY(file_exists(arena_printf(arena, "%s/config.json", out), &is_model));
    FAIL_IF(is_model, ERR_INVALID, "%s already holds a model; name a new folder", out);
    return OK;
}

Status cmd_import(CliArgs *args)
{
    FolderWriter writer;
    const char  *word = "bf16";
    DType        dtype;
    bool         done, is_there;
    const Flag   flags[] = {
          {"--dtype", FLAG_TEXT, &word, "TYPE", "what quantised weights become: bf16, or fp32, which keeps every value (bf16)"},
    };
    TRY(cli_parse(args, flags, sizeof flags / sizeof *flags, false, &done));
    if (done) return OK;
    TRY(cli_want_words(args, 2));
    const char *file = args->words[0], *out = args->words[1];
    FAIL_IF(!dtype_parse(word, &dtype) || !(DT_SET(dtype) & DT_SET_FLOAT), ERR_INVALID, "--dtype %s: expected bf16 or fp32", word);
    TRY(file_exists(file, &is_there));
    FAIL_IF(!is_there, ERR_NOT_FOUND, "%s: there is no such file", file);
    TRY(refuse_used(&args->arena, out));
    TRY(folder_begin(&args->arena, out, &writer));
    Status status = gguf_import(file, dtype, writer.partial);
    if (status != OK) return folder_abandon(&writer, status);
    TRY(folder_finish(&writer, "config.json"));
    log_info("wrote %s", out);
    return OK;
}
