/* surogate demo DIR: writes what the first steps need without a network: a tiny model, a text, conversations and run files. */
#include "cli/cli.h"

#include "base/log.h"
#include "device/device.h"
#include "files/file.h"
#include "model/new.h"
#include "text/bpe_train.h"
#include "text/template/template.h"

#include <string.h>

enum { NUM_ROWS = 40, VOCAB_SIZE = 320 };

static const char pt_yaml[] = "# All parameters, on plain text: surogate pt pt.yaml\n"
                              "model: base                # a Hugging Face folder, or ORG/NAME of the hub\n"
                              "output_dir: out-pt\n"
                              "datasets:\n"
                              "  - path: text.txt         # .jsonl .json .parquet .csv .txt, compressed or not\n"
                              "    type: text\n"
                              "sequence_len: 128\n"
                              "per_device_train_batch_size: 4\n"
                              "gradient_accumulation_steps: 1\n"
                              "num_epochs: 20\n"
                              "learning_rate: 5e-3\n";

static const char sft_yaml[] = "# Loss on the answers of conversations: surogate sft sft.yaml\n"
                               "model: base\n"
                               "output_dir: out\n"
                               "datasets:\n"
                               "  - path: chats.jsonl      # messages, ShareGPT, Alpaca or questions and answers\n"
                               "validation_split_ratio: 0.1\n"
                               "sequence_len: 128\n"
                               "per_device_train_batch_size: 4\n"
                               "gradient_accumulation_steps: 1\n"
                               "num_epochs: 30\n"
                               "learning_rate: 5e-3\n"
                               "logging_steps: 50\n";

static const char *path_in(CliArgs *args, const char *dir, const char *name)
{
    return arena_printf(&args->arena, "%s/%s", dir, name);
}

static const char *parity(int number)
{
    return number % 2 ? "An odd" : "An even";
}

static Status write_rows(CliArgs *args, const char *dir)
{
    StrBuf text = {0}, chats = {0};
    for (int i = 1; i <= NUM_ROWS; i++) {
        strbuf_printf(&text, "What is %d? %s number.\n", i, parity(i));
        strbuf_printf(&chats,
                      "{\"messages\": [{\"role\": \"user\", \"content\": \"What is %d?\"}, {\"role\": \"assistant\", \"content\": \"%s "
                      "number.\"}]}\n",
                      i, parity(i));
    }
    Status status = file_write_atomic(path_in(args, dir, "text.txt"), text.data, text.len);
    if (status == OK) status = file_write_atomic(path_in(args, dir, "chats.jsonl"), chats.data, chats.len);
    strbuf_deinit(&text);
    strbuf_deinit(&chats);
    return status;
}

/* Trains a tokenizer on the rows; chatml's turns begin and end with special tokens. */
static Status write_tokenizer(const char *rows, const char *folder)
{
    static const char *const special[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    const BpeTrainOptions    options = {
           .vocab_size = VOCAB_SIZE, .special_tokens = special, .num_special_tokens = 3, .eos_token = special[2], .pad_token = special[0]};
    BpeTrainer *trainer;
    FileMap     map;
    TRY(file_map(rows, &map));
    Status status = bpe_trainer_create(&options, &trainer);
    if (status == OK) {
        const Str words = {map.data, map.size};
        status = bpe_trainer_add(trainer, &words, 1);
        if (status == OK) status = bpe_trainer_train(trainer);
        if (status == OK) status = bpe_trainer_save(trainer, folder);
        bpe_trainer_destroy(trainer);
    }
    file_unmap(&map);
    return status;
}

static Status write_model(CliArgs *args, const char *dir)
{
    const char      *base = path_in(args, dir, "base");
    const Str        chatml = template_builtin("chatml");
    const NewOptions options = {
        .arch = "qwen3-tiny", .tokenizer = path_in(args, dir, "tokenizer"), .weights = true, .seed = 42, .max_shard_bytes = 5000000000};
    TRY(write_tokenizer(path_in(args, dir, "text.txt"), options.tokenizer));
    TRY(new_model(&options, base));
    return file_write_atomic(path_in(args, base, "chat_template.jinja"), chatml.data, chatml.len);
}

Status cmd_demo(CliArgs *args)
{
    static const char *const made[] = {"tokenizer", "base", "text.txt", "chats.jsonl", "pt.yaml", "sft.yaml"};
    bool                     done, is_there;
    TRY(cli_parse(args, NULL, 0, false, &done));
    if (done) return OK;
    TRY(cli_want_words(args, 1));
    const char *dir = args->words[0];
    for (size_t i = 0; i < sizeof made / sizeof *made; i++) {
        TRY(file_exists(path_in(args, dir, made[i]), &is_there));
        FAIL_IF(is_there, ERR_INVALID, "%s/%s is there already; name another folder", dir, made[i]);
    }
    TRY(file_make_dirs(path_in(args, dir, "base")));
    TRY(write_rows(args, dir));
    TRY(write_model(args, dir));
    TRY(file_write_atomic(path_in(args, dir, "pt.yaml"), pt_yaml, strlen(pt_yaml)));
    TRY(file_write_atomic(path_in(args, dir, "sft.yaml"), sft_yaml, strlen(sft_yaml)));
    log_info("wrote %s: a tiny model that knows nothing (base), a text, conversations, run files. Next:", dir);
    if (strcmp(dir, ".") != 0) log_info("  cd %s", dir);
    log_info("  surogate inspect chats.jsonl --model base");
    log_info("  surogate plan sft.yaml");
    log_info("  surogate sft sft.yaml");
    log_info("  surogate generate out --chat --prompt 'What is 31?' --temperature 0");
    return OK;
}
