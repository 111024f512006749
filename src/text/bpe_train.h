/* Learns a byte-level BPE vocabulary from texts and writes it as a tokenizer.json that other tools can read. Equal word counts give the
 * same merges as Hugging Face's BpeTrainer: the most frequent pair first; of equally frequent pairs the one with smaller ids. */
#pragma once

#include "base/pool.h"
#include "base/strbuf.h"

typedef struct BpeTrainer BpeTrainer;

typedef struct BpeTrainOptions {
    int32_t            vocab_size;     /* includes the special tokens and the 256 bytes */
    int64_t            min_frequency;  /* pairs that occur less often aren't merged; 0 means 1 */
    const char        *pattern;        /* expression that matches words, in Oniguruma's syntax; NULL: Qwen2's */
    const char *const *special_tokens; /* tokens with the first ids, in this order; must outlive the trainer */
    int                num_special_tokens;
    const char        *bos_token, *eos_token, *pad_token; /* written to tokenizer_config.json; NULL: none */
    ThreadPool        *pool;                              /* its workers count words; NULL: the calling thread does */
} BpeTrainOptions;

/* ERR_INVALID if vocab_size is less than the number of special tokens and bytes; ERR_UNSUPPORTED if the pattern isn't supported. */
NODISCARD Status bpe_trainer_create(const BpeTrainOptions *options, BpeTrainer **out_trainer);
void             bpe_trainer_destroy(BpeTrainer *trainer);

/* Counts the words of `count` texts, each a document, after NFC. Bytes that aren't UTF-8 count as U+FFFD. */
NODISCARD Status bpe_trainer_add(BpeTrainer *trainer, const Str *texts, int64_t count);

/* Learns the merges; to be called once, after the last bpe_trainer_add. The vocabulary stays smaller than vocab_size if there are no more
 * pairs. */
NODISCARD Status bpe_trainer_train(BpeTrainer *trainer);

size_t bpe_trainer_num_merges(const BpeTrainer *trainer);

/* Writes tokenizer.json and tokenizer_config.json into `dir`, creating it if necessary. */
NODISCARD Status bpe_trainer_save(const BpeTrainer *trainer, const char *dir);
/* Appends the text of tokenizer.json. */
void bpe_trainer_write(const BpeTrainer *trainer, StrBuf *out);
