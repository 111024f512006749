/* surogate tokenizer train --vocab-size N --out DIR FILE...: trains a byte-level BPE tokenizer. */
#include "cli/cli.h"

#include "base/log.h"
#include "data/text_file.h"
#include "device/device.h"
#include "files/file.h"
#include "files/folder.h"
#include "text/bpe_train.h"

#include <string.h>

enum { MAX_VOCAB = 1 << 24 };

typedef struct TokenizerArgs {
    const char *out, *special, *eos;
    int64_t     vocab_size, min_frequency;
    bool        force;
} TokenizerArgs;

/* Splits "a,b,c" into names; the array has room for one more. */
static const char **split_names(Arena *arena, const char *text, int *out_count)
{
    size_t room = 2;
    int    count = 0;
    for (const char *at = text; (at = strchr(at, ',')); at++) room++;
    const char **names = arena_array(arena, const char *, room);
    for (const char *at = text; *at;) {
        size_t len = strcspn(at, ",");
        if (len) names[count++] = arena_strndup(arena, at, len);
        at += len + (at[len] == ',');
    }
    *out_count = count;
    return names;
}

/* Adds each file that the words name as one document; a folder stands for its files. */
static Status add_files(CliArgs *args, BpeTrainer *trainer, size_t *out_files)
{
    *out_files = 0;
    for (size_t w = 1; w < args->num_words; w++) {
        const char **paths;
        size_t       count;
        TRY(cli_list_files(&args->arena, args->words[w], &paths, &count));
        for (size_t i = 0; i < count; i++) {
            TextFile file;
            TRY(text_file_open(paths[i], &file));
            Status status = bpe_trainer_add(trainer, &file.text, 1);
            text_file_close(&file);
            TRY(status);
        }
        *out_files += count;
    }
    return OK;
}

/* Makes the folder first: if that fails, no time was spent on training. */
static Status train_into(CliArgs *args, BpeTrainer *trainer, const char *dir, size_t *out_files)
{
    FolderWriter writer;
    TRY(folder_begin(&args->arena, dir, &writer));
    Status status = add_files(args, trainer, out_files);
    if (status == OK) status = bpe_trainer_train(trainer);
    if (status == OK) status = bpe_trainer_save(trainer, writer.partial);
    return status == OK ? folder_finish(&writer, "tokenizer.json") : folder_abandon(&writer, status);
}

static Status train(CliArgs *args, const TokenizerArgs *t, ThreadPool *pool)
{
    int          num_special, eos = 0;
    const char **special = split_names(&args->arena, t->special, &num_special);
    while (eos < num_special && strcmp(special[eos], t->eos) != 0) eos++;
    if (eos == num_special) special[num_special++] = t->eos;
    BpeTrainOptions options = {.vocab_size = (int32_t)t->vocab_size,
                               .min_frequency = t->min_frequency,
                               .special_tokens = special,
                               .num_special_tokens = num_special,
                               .eos_token = t->eos,
                               .pad_token = t->eos,
                               .pool = pool};
    BpeTrainer     *trainer;
    size_t          files;
    TRY(bpe_trainer_create(&options, &trainer));
    Status  status = train_into(args, trainer, t->out, &files);
    int64_t learnt = 256 + num_special + (int64_t)bpe_trainer_num_merges(trainer);
    if (status == OK && learnt < t->vocab_size)
        log_warn("%lld tokens were learnt of the %lld asked for: no other pair of tokens is frequent enough; give more text",
                 (long long)learnt, (long long)t->vocab_size);
    if (status == OK)
        log_info("wrote %s/tokenizer.json: %zu merges from %zu file%s", t->out, bpe_trainer_num_merges(trainer), files,
                 files == 1 ? "" : "s");
    bpe_trainer_destroy(trainer);
    return status;
}

Status cmd_tokenizer(CliArgs *args)
{
    TokenizerArgs t = {.special = "<|endoftext|>", .eos = "<|endoftext|>"};
    bool          done;
    const Flag    flags[] = {
           {"--vocab-size", FLAG_INT, &t.vocab_size, "N", "size of the vocabulary, with special tokens and the 256 bytes"},
           {"--out", FLAG_TEXT, &t.out, "DIR", "where tokenizer.json and tokenizer_config.json go"},
           {"--special-tokens", FLAG_TEXT, &t.special, "A,B,...", "special tokens, which take the first ids (<|endoftext|>)"},
           {"--eos-token", FLAG_TEXT, &t.eos, "TOKEN", "the token that ends a text (<|endoftext|>)"},
           {"--force", FLAG_SWITCH, &t.force, NULL, "replace a tokenizer.json that is there"},
           {"--min-frequency", FLAG_INT, &t.min_frequency, "N", "rarer pairs aren't merged (1)"},
    };
    TRY(cli_parse(args, flags, sizeof flags / sizeof *flags, false, &done));
    if (done) return OK;
    FAIL_IF(args->num_words < 2 || strcmp(args->words[0], "train") != 0 || !t.out || !t.vocab_size, ERR_INVALID,
            "usage: surogate tokenizer %s", args->arguments);
    FAIL_IF(t.vocab_size < 257 || t.vocab_size > MAX_VOCAB, ERR_INVALID,
            "--vocab-size %lld: expected from 257 (256 bytes and a special token) to %d", (long long)t.vocab_size, MAX_VOCAB);
    bool is_there = false;
    if (!t.force) TRY(file_exists(arena_printf(&args->arena, "%s/tokenizer.json", t.out), &is_there));
    FAIL_IF(is_there, ERR_INVALID, "%s/tokenizer.json exists; name a new folder, or replace it with --force", t.out);
    Device *device;
    TRY(device_cpu_create(0, &device));
    Status status = train(args, &t, device_cpu_pool(device));
    device->api->destroy(device);
    return status;
}
