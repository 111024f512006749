/* Learns a byte-level BPE vocabulary from texts and writes it as a tokenizer.json that other tools read. The same words
 * give the same merges as Hugging Face's BpeTrainer: most frequent pair first, of equals the smaller ids. */
#pragma once

#include "base/pool.h"
#include "base/strbuf.h"

typedef struct BpeTrainer BpeTrainer;

typedef struct BpeTrainOptions {
    int32_t            vocab_size;     /* special tokens and the 256 bytes included */
    int64_t            min_frequency;  /* a pair rarer than this isn't merged; 0 as 1 */
    const char        *pattern;        /* cuts texts into words, in Oniguruma's syntax; NULL: Qwen2's */
    const char *const *special_tokens; /* take the first ids, in this order; borrowed until bpe_trainer_destroy */
    int                num_special_tokens;
    const char        *bos_token, *eos_token, *pad_token; /* for tokenizer_config.json; NULL: none */
    ThreadPool        *pool;                              /* counts words in its workers; NULL: in this thread */
} BpeTrainOptions;

/* ERR_INVALID when the vocabulary is smaller than the special tokens and bytes, ERR_UNSUPPORTED for the pattern. */
NODISCARD Status bpe_trainer_create(const BpeTrainOptions *options, BpeTrainer **out_trainer);
void             bpe_trainer_destroy(BpeTrainer *trainer);

/* Counts the words of texts (each one document; bytes that aren't UTF-8 count as U+FFFD), after NFC. */
NODISCARD Status bpe_trainer_add(BpeTrainer *trainer, const Str *texts, int64_t count);

/* Learns the merges; once, after the last add. The vocabulary may stay smaller than asked when words run out. */
NODISCARD Status bpe_trainer_train(BpeTrainer *trainer);

size_t bpe_trainer_num_merges(const BpeTrainer *trainer);

/* tokenizer.json and tokenizer_config.json in `dir`, which is made. */
NODISCARD Status bpe_trainer_save(const BpeTrainer *trainer, const char *dir);
/* The text of tokenizer.json, appended. */
void bpe_trainer_write(const BpeTrainer *trainer, StrBuf *out);
