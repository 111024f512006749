/* surogate encode MODEL_DIR --text FILE [--json]: prints the token ids of a text. */
#include "cli/cli.h"

#include "files/file.h"
#include "model/hf_model.h"
#include "text/tokenizer.h"

static Status encode(CliArgs *args, const char *path, bool plain, TokenIds *ids)
{
    Tokenizer  *tokenizer;
    const char *dir, *gguf;
    Str         text;
    Status      read = file_read_stream(&args->arena, cli_input_path(path), (size_t)1 << 32, &text);
    if (read == ERR_NOT_FOUND)
        return status_prefix(read, "--text takes a file (for a text itself: printf %%s TEXT | surogate encode %s --text -)",
                             args->words[0]);
    TRY(read);
    TRY(hf_local_dir(&args->arena, args->words[0], &dir, &gguf));
    TRY(tokenizer_load(dir, &tokenizer));
    TokenizerScratch *scratch = tokenizer_scratch_create(tokenizer);
    EncodeOptions     options = {.add_special = !plain};
    Status            status = tokenizer_encode(tokenizer, scratch, text.data, text.len, options, ids);
    tokenizer_scratch_destroy(scratch);
    tokenizer_destroy(tokenizer);
    return status;
}

Status cmd_encode(CliArgs *args)
{
    const char *path = NULL;
    bool        json = false, plain = false, done;
    const Flag  flags[] = {
         {"--text", FLAG_TEXT, &path, "FILE", "the text; -: from standard input"},
         {"--json", FLAG_SWITCH, &json, NULL, "{\"ids\": [...]} instead of ids with spaces between"},
         {"--no-special", FLAG_SWITCH, &plain, NULL, "add no special tokens such as BOS"},
    };
    TRY(cli_parse(args, flags, 3, false, &done));
    if (done) return OK;
    TRY(cli_want_words(args, 1));
    FAIL_IF(!path, ERR_INVALID, "surogate encode: --text FILE is missing");
    TokenIds ids = {0};
    Status   status = encode(args, path, plain, &ids);
    if (status == OK) {
        StrBuf out = {0};
        if (json) strbuf_puts(&out, "{\"ids\":[");
        for (size_t i = 0; i < ids.len; i++) strbuf_printf(&out, "%s%d", i ? json ? "," : " " : "", ids.data[i]);
        strbuf_puts(&out, json ? "]}\n" : "\n");
        status = cli_print(&out);
        strbuf_deinit(&out);
    }
    token_ids_deinit(&ids);
    return status;
}
