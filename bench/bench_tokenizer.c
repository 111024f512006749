/* Tokenizer speed, and a driver for the oracle scripts.
 *
 *   bench_tokenizer speed DIR FILE [THREADS] [PART_BYTES]   MB/s of encoding FILE in parts, best of several runs
 *   bench_tokenizer encode DIR [special]     stdin: uint32 length, bytes, ...; stdout: uint32 count, int32 ids, ...
 *   bench_tokenizer decode DIR               stdin: uint32 count, int32 ids, ...; stdout: uint32 length, bytes, ...
 *   bench_tokenizer train OUT_DIR VOCAB_SIZE MIN_FREQUENCY THREADS FILE...   seconds; writes OUT_DIR/tokenizer.json
 *
 * tests/oracle/tokenizer_speed.py measures HF tokenizers beside it. */
#include "base/pool.h"
#include "files/file.h"
#include "text/bpe_train.h"
#include "text/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double seconds_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static int failed(void)
{
    fprintf(stderr, "error: %s\n", status_message());
    return 1;
}

typedef struct SpeedJob {
    const Tokenizer  *tokenizer;
    TokenizerScratch *scratch[64];
    TokenIds          ids[64];
    Str               text;
    size_t            part_bytes;
    size_t            num_ids[64];
} SpeedJob;

static size_t part_end(const SpeedJob *job, size_t part)
{
    size_t end = (part + 1) * job->part_bytes;
    if (end >= job->text.len) return job->text.len;
    while (end < job->text.len && job->text.data[end - 1] != '\n') end++;
    return end;
}

static void encode_part(void *context, int64_t part, int worker)
{
    SpeedJob *job = context;
    size_t    start = part ? part_end(job, (size_t)part - 1) : 0, end = part_end(job, (size_t)part);
    job->ids[worker].len = 0;
    if (tokenizer_encode(job->tokenizer, job->scratch[worker], job->text.data + start, end - start, (EncodeOptions){0},
                         &job->ids[worker]) != OK)
        exit(failed());
    job->num_ids[worker] += job->ids[worker].len;
}

static int run_speed(int argc, char **argv)
{
    SpeedJob    job = {0};
    Arena       arena = {0};
    Tokenizer  *tokenizer;
    ThreadPool *pool;
    int         threads = argc > 4 ? atoi(argv[4]) : 1;
    job.part_bytes = argc > 5 ? (size_t)atol(argv[5]) : 4096;
    if (threads < 1 || threads > 64 || job.part_bytes == 0) return 2;
    double start = seconds_now();
    if (tokenizer_load(argv[2], &tokenizer) != OK || file_read(&arena, argv[3], (size_t)1 << 31, &job.text) != OK ||
        pool_create(threads, &pool) != OK)
        return failed();
    double load = seconds_now() - start, best = 1e9, total = 0;
    job.tokenizer = tokenizer;
    for (int i = 0; i < threads; i++) job.scratch[i] = tokenizer_scratch_create(tokenizer);
    size_t parts = (job.text.len + job.part_bytes - 1) / job.part_bytes, count = 0;
    for (int run = 0; run < 300 && (run < 3 || total < 2); run++) {
        memset(job.num_ids, 0, sizeof job.num_ids);
        start = seconds_now();
        pool_run(pool, (int64_t)parts, encode_part, &job);
        double took = seconds_now() - start;
        total += took;
        if (took < best) best = took;
        count = 0;
        for (int i = 0; i < threads; i++) count += job.num_ids[i];
    }
    printf("%.2f MB/s %.2f Mtokens/s threads %d load %.0f ms tokens %zu\n", (double)job.text.len / best / 1e6, (double)count / best / 1e6,
           threads, load * 1e3, count);
    for (int i = 0; i < threads; i++) {
        tokenizer_scratch_destroy(job.scratch[i]);
        token_ids_deinit(&job.ids[i]);
    }
    pool_destroy(pool);
    tokenizer_destroy(tokenizer);
    arena_deinit(&arena);
    return 0;
}

static int run_encode(int argc, char **argv)
{
    Tokenizer *tokenizer;
    if (tokenizer_load(argv[2], &tokenizer) != OK) return failed();
    TokenizerScratch *scratch = tokenizer_scratch_create(tokenizer);
    EncodeOptions     options = {.add_special = argc > 3};
    TokenIds          ids = {0};
    StrBuf            text = {0};
    uint32_t          len;
    while (fread(&len, 4, 1, stdin) == 1) {
        strbuf_clear(&text);
        strbuf_reserve(&text, len);
        if (fread(text.data, 1, len, stdin) != len) return 1;
        ids.len = 0;
        if (tokenizer_encode(tokenizer, scratch, text.data, len, options, &ids) != OK) return failed();
        uint32_t count = (uint32_t)ids.len;
        fwrite(&count, 4, 1, stdout);
        fwrite(ids.data, 4, count, stdout);
    }
    token_ids_deinit(&ids);
    strbuf_deinit(&text);
    tokenizer_scratch_destroy(scratch);
    tokenizer_destroy(tokenizer);
    return 0;
}

static int run_decode(char **argv)
{
    Tokenizer *tokenizer;
    if (tokenizer_load(argv[2], &tokenizer) != OK) return failed();
    StrBuf   ids = {0}, text = {0};
    uint32_t count;
    while (fread(&count, 4, 1, stdin) == 1) {
        strbuf_clear(&ids);
        strbuf_clear(&text);
        strbuf_reserve(&ids, (size_t)count * 4);
        if (fread(ids.data, 4, count, stdin) != count) return 1;
        if (tokenizer_decode(tokenizer, (const int32_t *)ids.data, count, false, &text) != OK) return failed();
        uint32_t len = (uint32_t)text.len;
        fwrite(&len, 4, 1, stdout);
        fwrite(strbuf_cstr(&text), 1, len, stdout);
    }
    strbuf_deinit(&ids);
    strbuf_deinit(&text);
    tokenizer_destroy(tokenizer);
    return 0;
}

static int run_train(int argc, char **argv)
{
    Arena           arena = {0};
    ThreadPool     *pool;
    BpeTrainer     *trainer;
    const char     *special[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    BpeTrainOptions options = {.vocab_size = atoi(argv[3]),
                               .min_frequency = atoi(argv[4]),
                               .special_tokens = special,
                               .num_special_tokens = 3,
                               .eos_token = "<|endoftext|>"};
    double          start = seconds_now();
    if (pool_create(atoi(argv[5]), &pool) != OK) return failed();
    options.pool = pool;
    if (bpe_trainer_create(&options, &trainer) != OK) return failed();
    for (int i = 6; i < argc; i++) {
        Str text;
        if (file_read(&arena, argv[i], (size_t)1 << 31, &text) != OK || bpe_trainer_add(trainer, &text, 1) != OK) return failed();
    }
    double counted = seconds_now();
    if (bpe_trainer_train(trainer) != OK || bpe_trainer_save(trainer, argv[2]) != OK) return failed();
    printf("%.2f s: counting words %.2f s, merging %.2f s; %zu merges\n", seconds_now() - start, counted - start, seconds_now() - counted,
           bpe_trainer_num_merges(trainer));
    bpe_trainer_destroy(trainer);
    pool_destroy(pool);
    arena_deinit(&arena);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc >= 4 && strcmp(argv[1], "speed") == 0) return run_speed(argc, argv);
    if (argc >= 3 && strcmp(argv[1], "encode") == 0) return run_encode(argc, argv);
    if (argc >= 3 && strcmp(argv[1], "decode") == 0) return run_decode(argv);
    if (argc >= 7 && strcmp(argv[1], "train") == 0) return run_train(argc, argv);
    fprintf(stderr, "usage: bench_tokenizer speed|encode|decode|train ... (see the file's head)\n");
    return argc == 1 ? 0 : 2;
}
