/* The loader: every label comes once, documents stay apart, the order is a pure function of the seed, resuming is exact, step counts are
 * known ahead. */
#include "data/loader.h"

#include "base/hash.h"
#include "data_util.h"

#include <math.h>

static ShardSet open_set(const char *dir, bool has_mask)
{
    static const int first[] = {5, 17, 3, 40, 8, 1, 22, 9}, second[] = {13, 2, 31, 6};
    ShardSet         set;
    write_shard(path_in(dir, "shard-00000.tokens"), first, 8, 500, has_mask);
    write_shard(path_in(dir, "shard-00001.tokens"), second, 4, 500, has_mask);
    EXPECT_OK(shard_set_open(dir, &set));
    return set;
}

static Loader *open_loader(const ShardSet *set, LoaderOptions options)
{
    LoaderSource source = {.shards = set};
    Loader      *loader = NULL;
    EXPECT_OK(loader_create(&options, &source, 1, &loader));
    return loader;
}

/* Checks the invariants of a row. */
static void check_row(const Feeds *batch, int64_t b, int64_t T)
{
    int64_t at = b * T;
    for (int64_t t = 0; t < T; t++) {
        int64_t i = at + t;
        if (batch->doc_id[i] < 0) {
            EXPECT_INT(batch->labels[i], LABEL_IGNORE);
            EXPECT_INT(batch->doc_start[i], t);
            EXPECT_INT(batch->positions[i], 0);
            continue;
        }
        EXPECT_INT(batch->positions[i], t - batch->doc_start[i]);
        EXPECT_INT(batch->doc_id[i], batch->doc_id[at + batch->doc_start[i]]);
        bool is_next_same = t + 1 < T && batch->doc_start[i + 1] == batch->doc_start[i] && batch->doc_id[i + 1] >= 0;
        if (is_next_same && batch->labels[i] != LABEL_IGNORE) EXPECT_INT(batch->labels[i], batch->tokens[i + 1]);
        if (t + 1 < T && !is_next_same) EXPECT_INT(batch->labels[i], LABEL_IGNORE);
    }
}

static void stream_uses_every_token_and_label_once(void)
{
    const char *dir = scratch_dir();
    ShardSet    set = open_set(dir, false);
    Loader     *loader = open_loader(&set, (LoaderOptions){.mode = LOADER_STREAM,
                                                           .seq_len = 16,
                                                           .batch_size = 3,
                                                           .grad_accum_steps = 2,
                                                           .num_epochs = 1,
                                                           .shuffle = true,
                                                           .seed = 4,
                                                           .prefetch = 3});
    EXPECT_INT(loader_stats(loader)->num_rows, 10); /* 157 tokens */
    EXPECT_INT(loader_num_steps(loader), 2);
    int64_t tokens = 0, labels = 0, ahead = 0;
    for (const Feeds *batch;;) {
        EXPECT_OK(loader_next(loader, &batch));
        if (!batch) break;
        for (int b = 0; b < 3; b++) check_row(batch, b, 16);
        tokens += batch->num_tokens;
        labels += batch->num_trained;
    }
    for (int64_t step = 0; step < 2; step++) {
        int64_t count;
        EXPECT_OK(loader_step_tokens(loader, step, &count));
        ahead += count;
    }
    EXPECT_INT(tokens, 157);
    EXPECT_INT(labels, 157 - 12);
    EXPECT_INT(ahead, labels);
    loader_destroy(loader);
    shard_set_close(&set);
    EXPECT_OK(file_remove_tree(dir));
}

/* A digest of (document, position, token, label) that doesn't depend on the order of rows. */
static uint64_t batch_digest(const Feeds *batch, int64_t numel)
{
    uint64_t sum = 0;
    for (int64_t i = 0; i < numel; i++) {
        int32_t part[4] = {batch->doc_id[i], batch->positions[i], batch->tokens[i], batch->labels[i]};
        if (part[0] >= 0) sum += hash_bytes(part, sizeof part, 1);
    }
    return sum;
}

static void layouts_of_a_batch_hold_the_same_rows(void)
{
    const char *dir = scratch_dir();
    ShardSet    set = open_set(dir, true);
    for (int mode = 0; mode < 3; mode++) {
        uint64_t want[3] = {0};
        for (int batch_size = 1; batch_size <= 4; batch_size *= 2)
            for (int world = 1; world <= 2; world++) {
                uint64_t digest[3] = {0};
                for (int rank = 0; rank < world; rank++) {
                    if (batch_size * world > 4) continue;
                    Loader      *loader = open_loader(&set, (LoaderOptions){.mode = (LoaderMode)mode,
                                                                            .seq_len = 24,
                                                                            .batch_size = batch_size,
                                                                            .shuffle = true,
                                                                            .rank = rank,
                                                                            .world_size = world,
                                                                            .seed = 9,
                                                                            .grad_accum_steps = 4 / (batch_size * world)});
                    const Feeds *batch;
                    int64_t      count = 0, sum = 0;
                    for (int i = 0; i < 3 * 4 / (batch_size * world); i++) {
                        EXPECT_OK(loader_next(loader, &batch));
                        digest[batch->step_index] += batch_digest(batch, batch_size * 24);
                        if (batch->step_index == 1) sum += batch->num_trained;
                    }
                    EXPECT_OK(loader_step_tokens(loader, 1, &count));
                    if (world == 1) EXPECT_INT(sum, count);
                    loader_destroy(loader);
                }
                if (batch_size * world > 4) continue;
                for (int s = 0; s < 3; s++) {
                    if (!want[s]) want[s] = digest[s];
                    EXPECT(want[s] == digest[s]);
                }
            }
    }
    shard_set_close(&set);
    EXPECT_OK(file_remove_tree(dir));
}

static void packed_and_padded_hold_the_same_samples(void)
{
    const char *dir = scratch_dir();
    ShardSet    set = open_set(dir, true);
    uint64_t    digests[2];
    for (int k = 0; k < 2; k++) {
        Loader *loader = open_loader(
            &set,
            (LoaderOptions){.mode = k ? LOADER_PACKED : LOADER_PADDED, .seq_len = 24, .batch_size = 20, .num_epochs = 1, .shuffle = true});
        const Feeds *batch;
        EXPECT_OK(loader_next(loader, &batch));
        for (int b = 0; b < 20; b++) check_row(batch, b, 24);
        digests[k] = batch_digest(batch, 20 * 24);
        const LoaderStats *stats = loader_stats(loader);
        EXPECT_INT(stats->num_truncated, 2);
        EXPECT_INT(stats->tokens_cut, 40 - 24 + 31 - 24);
        EXPECT_INT(stats->num_dropped_empty, 1); /* the document with one token */
        EXPECT_INT(batch->num_trained, stats->num_trained);
        if (k) EXPECT(stats->efficiency > 0.8);
        loader_destroy(loader);
    }
    EXPECT(digests[0] == digests[1]);
    shard_set_close(&set);
    EXPECT_OK(file_remove_tree(dir));
}

static void splitting_loses_no_label(void)
{
    const char *dir = scratch_dir();
    ShardSet    set = open_set(dir, true);
    Loader *split = open_loader(&set, (LoaderOptions){.mode = LOADER_PACKED, .long_samples = LONG_SPLIT, .seq_len = 7, .batch_size = 1});
    EXPECT_INT(loader_stats(split)->num_trained, set.num_trained);
    EXPECT_INT(loader_stats(split)->tokens_cut, 0);
    Loader *drop = open_loader(&set, (LoaderOptions){.mode = LOADER_PACKED, .long_samples = LONG_DROP, .seq_len = 7, .batch_size = 1});
    EXPECT_INT(loader_stats(drop)->num_dropped_long, 7);
    EXPECT_INT(loader_stats(drop)->num_tokens, 5 + 3 + 2 + 6);
    LoaderSource  source = {.shards = &set};
    LoaderOptions strict = {.mode = LOADER_PACKED, .long_samples = LONG_ERROR, .seq_len = 7, .batch_size = 1};
    Loader       *none;
    EXPECT_FAILS(loader_create(&strict, &source, 1, &none), ERR_INVALID, "7 of 12 samples are longer than sequence_len 7");
    loader_destroy(split);
    loader_destroy(drop);
    shard_set_close(&set);
    EXPECT_OK(file_remove_tree(dir));
}

/* Texts lose no token, packed or padded, under each rule for conversations that are too long. */
static void text_is_never_lost(void)
{
    const char *dir = scratch_dir();
    ShardSet    text = open_set(dir, false), chats;
    EXPECT_OK(file_make_dirs(path_in(dir, "chats")));
    write_shard(path_in(dir, "chats/shard-00000.tokens"), (const int[]){4, 30}, 2, 500, true);
    EXPECT_OK(shard_set_open(path_in(dir, "chats"), &chats));
    LoaderSource sources[] = {{.shards = &text}, {.shards = &chats}};
    for (int mode = LOADER_PACKED; mode <= LOADER_PADDED; mode++)
        for (int rule = LONG_TRUNCATE; rule <= LONG_DROP; rule++) {
            LoaderOptions options = {.mode = (LoaderMode)mode, .long_samples = (LongSamples)rule, .seq_len = 8, .batch_size = 1};
            Loader       *loader;
            EXPECT_OK(loader_create(&options, sources, 2, &loader));
            const LoaderStats *stats = loader_stats(loader);
            int64_t            of_chats = rule == LONG_SPLIT ? 2 + 15 : rule == LONG_TRUNCATE ? 2 + 4 : 2;
            EXPECT_INT(stats->num_trained, text.num_tokens - text.num_documents + of_chats);
            EXPECT_INT(stats->num_dropped_empty, 1); /* the text with one token */
            EXPECT_INT(stats->num_truncated, rule == LONG_TRUNCATE);
            EXPECT_INT(stats->num_dropped_long, rule == LONG_DROP);
            EXPECT_INT(stats->tokens_cut, rule == LONG_SPLIT ? 0 : rule == LONG_DROP ? 30 : 22);
            loader_destroy(loader);
        }
    LoaderOptions strict = {.mode = LOADER_PADDED, .long_samples = LONG_ERROR, .seq_len = 8, .batch_size = 1};
    Loader       *loader;
    EXPECT_OK(loader_create(&strict, sources, 1, &loader));
    loader_destroy(loader);
    shard_set_close(&text);
    shard_set_close(&chats);
    EXPECT_OK(file_remove_tree(dir));
}

static void seeking_is_exact_over_epochs(void)
{
    const char   *dir = scratch_dir();
    ShardSet      set = open_set(dir, false);
    uint64_t      digests[40];
    LoaderOptions options = {.mode = LOADER_STREAM, .seq_len = 8, .batch_size = 3, .shuffle = true, .seed = 1, .prefetch = 2};
    Loader       *loader = open_loader(&set, options);
    const Feeds  *batch;
    for (int i = 0; i < 40; i++) {
        EXPECT_OK(loader_next(loader, &batch));
        digests[i] = hash_bytes(batch->tokens, sizeof(int32_t) * 24, 0);
    }
    for (int i = 39; i >= 0; i -= 3) {
        loader_seek(loader, i);
        for (int k = i; k < 40 && k < i + 4; k++) {
            EXPECT_OK(loader_next(loader, &batch));
            EXPECT_INT(batch->step_index, k);
            EXPECT(hash_bytes(batch->tokens, sizeof(int32_t) * 24, 0) == digests[k]);
        }
    }
    EXPECT_NEAR(loader_epoch(loader, 20), 60.0 / 20.0, 1e-12);
    loader_destroy(loader);
    shard_set_close(&set);
    EXPECT_OK(file_remove_tree(dir));
}

static void validation_and_training_share_no_document(void)
{
    const char *dir = scratch_dir();
    ShardSet    set;
    int         lengths[200];
    for (int i = 0; i < 200; i++) lengths[i] = 2 + i % 7;
    write_shard(path_in(dir, "shard-00000.tokens"), lengths, 200, 500, false);
    EXPECT_OK(shard_set_open(dir, &set));
    uint8_t seen[200] = {0};
    for (int part = LOADER_TRAIN; part <= LOADER_VALIDATION; part++) {
        LoaderOptions options = {.mode = LOADER_PADDED,
                                 .part = (LoaderPart)part,
                                 .validation_ratio = 0.2,
                                 .seq_len = 8,
                                 .batch_size = 1,
                                 .num_epochs = 1,
                                 .seed = 3,
                                 .shuffle = true};
        Loader       *loader = open_loader(&set, options);
        for (const Feeds *batch;;) {
            EXPECT_OK(loader_next(loader, &batch));
            if (!batch) break;
            EXPECT(!seen[batch->doc_id[0]]++);
        }
        int64_t rows = loader_stats(loader)->num_rows;
        EXPECT(part == LOADER_TRAIN ? rows > 140 && rows < 180 : rows > 20 && rows < 60);
        loader_destroy(loader);
    }
    for (int i = 0; i < 200; i++) EXPECT_INT(seen[i], 1);
    shard_set_close(&set);
    EXPECT_OK(file_remove_tree(dir));
}

static void one_document_is_split_by_tokens(void)
{
    const char *dir = scratch_dir();
    ShardSet    set;
    int         length = 1000;
    write_shard(path_in(dir, "shard-00000.tokens"), &length, 1, 500, false);
    EXPECT_OK(shard_set_open(dir, &set));
    for (int part = LOADER_TRAIN; part <= LOADER_VALIDATION; part++) {
        Loader *loader =
            open_loader(&set, (LoaderOptions){.part = (LoaderPart)part, .validation_ratio = 0.1, .seq_len = 10, .batch_size = 1});
        EXPECT_INT(loader_stats(loader)->num_tokens, part == LOADER_TRAIN ? 900 : 100);
        loader_destroy(loader);
    }
    shard_set_close(&set);
    EXPECT_OK(file_remove_tree(dir));
}

static void weights_repeat_and_thin_out(void)
{
    const char   *dir = scratch_dir();
    ShardSet      set = open_set(dir, false);
    LoaderSource  sources[] = {{.shards = &set, .weight = 2}, {.shards = &set, .weight = 0.5}};
    LoaderOptions options = {.mode = LOADER_PADDED, .seq_len = 64, .batch_size = 1, .shuffle = true, .num_epochs = 2};
    Loader       *loader;
    EXPECT_OK(loader_create(&options, sources, 2, &loader));
    EXPECT_INT(loader_stats(loader)->num_rows, 22);
    EXPECT_INT(loader_stats(loader)->rows_per_epoch, 22 + 5);
    int counts[24] = {0};
    for (int i = 0; i < 27; i++) {
        const Feeds *batch;
        EXPECT_OK(loader_next(loader, &batch));
        counts[batch->doc_id[0]]++;
    }
    for (int d = 0; d < 12; d++) {
        EXPECT_INT(counts[d], d == 5 ? 0 : 2); /* document 5 has one token: nothing to learn */
        EXPECT(counts[12 + d] <= 1);
    }
    loader_destroy(loader);
    shard_set_close(&set);
    EXPECT_OK(file_remove_tree(dir));
}

typedef struct Mix {
    ShardSet plain, thin; /* plain: 4 samples; thin: 6 samples, two to a row */
} Mix;

static Mix open_mix(const char *dir, bool has_mask)
{
    Mix mix;
    EXPECT_OK(file_make_dirs(path_in(dir, "plain")));
    EXPECT_OK(file_make_dirs(path_in(dir, "thin")));
    write_shard(path_in(dir, "plain/shard-00000.tokens"), (const int[]){9, 8, 7, 6}, 4, 500, has_mask);
    write_shard(path_in(dir, "thin/shard-00000.tokens"), (const int[]){8, 7, 8, 6, 8, 5}, 6, 500, has_mask);
    EXPECT_OK(shard_set_open(path_in(dir, "plain"), &mix.plain));
    EXPECT_OK(shard_set_open(path_in(dir, "thin"), &mix.thin));
    return mix;
}

/* After `epochs` epochs, floor(weight * 6 * epochs) thin samples have come. All six come before one comes again. */
static void check_share(const Mix *mix, LoaderMode mode, double weight)
{
    LoaderSource  sources[] = {{.shards = &mix->plain}, {.shards = &mix->thin, .weight = weight}};
    LoaderOptions options = {.mode = mode, .seq_len = 16, .batch_size = 1, .num_epochs = 12, .shuffle = true, .seed = 5, .prefetch = 3};
    Loader       *loader;
    int64_t       counts[10] = {0}, seen = 0;
    EXPECT_OK(loader_create(&options, sources, 2, &loader));
    for (int64_t step = 0;; step++) {
        const Feeds *batch;
        EXPECT_OK(loader_next(loader, &batch));
        if (!batch) break;
        int64_t of_row = 0, trained;
        EXPECT_OK(loader_step_tokens(loader, step, &trained));
        EXPECT_INT(trained, batch->num_trained);
        for (int t = 0; t < 16; t++) {
            if (batch->doc_id[t] < 0 || batch->positions[t] != 0) continue;
            counts[batch->doc_id[t]]++;
            of_row += batch->doc_id[t] >= 4;
        }
        seen += of_row;
        double epoch = loader_epoch(loader, step + 1), ended = floor(epoch + 1e-9);
        if (epoch - ended < 1e-9) EXPECT_INT(seen, (int64_t)floor(weight * 6 * ended + 1e-6));
    }
    for (int d = 0; d < 4; d++) EXPECT_INT(counts[d], 12);
    for (int d = 4; d < 10; d++)
        for (int k = 4; k < 10; k++) EXPECT(counts[d] - counts[k] <= 1);
    EXPECT_INT(seen, (int64_t)floor(weight * 72 + 1e-6));
    loader_destroy(loader);
}

static void small_weights_add_up(void)
{
    static const double weights[] = {0.1, 0.2, 0.29, 0.5, 0.75, 1, 1.1, 1.5, 2, 2.9};
    const char         *dir = scratch_dir();
    Mix                 mix = open_mix(dir, true);
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        check_share(&mix, LOADER_PACKED, weights[i]);
        check_share(&mix, LOADER_PADDED, weights[i]);
    }
    LoaderSource  sources[] = {{.shards = &mix.plain}, {.shards = &mix.thin, .weight = 0.01, .name = "thin"}};
    LoaderOptions options = {.mode = LOADER_PACKED, .seq_len = 16, .batch_size = 1, .num_epochs = 3, .shuffle = true};
    Loader       *loader;
    EXPECT_OK(loader_create(&options, sources, 2, &loader));
    EXPECT_STR(loader_unseen(loader, loader_num_steps(loader)), "thin");
    loader_destroy(loader);
    options.num_epochs = 17; /* 0.01 * 6 * 17 is 1.02 */
    EXPECT_OK(loader_create(&options, sources, 2, &loader));
    EXPECT(!loader_unseen(loader, loader_num_steps(loader)));
    EXPECT_STR(loader_unseen(loader, 4), "thin");
    loader_destroy(loader);
    EXPECT_FAILS(
        loader_create(&(LoaderOptions){.seq_len = 16, .batch_size = 1, .num_epochs = 3, .mode = LOADER_PADDED}, sources + 1, 1, &loader),
        ERR_INVALID, "thin: its weight is so small");
    options = (LoaderOptions){.mode = LOADER_PACKED, .seq_len = 16, .batch_size = 1, .num_epochs = 1, .at_least_one = true};
    EXPECT_OK(loader_create(&options, sources + 1, 1, &loader));
    EXPECT_INT(loader_num_steps(loader), 1);
    loader_destroy(loader);
    shard_set_close(&mix.plain);
    shard_set_close(&mix.thin);
    EXPECT_OK(file_remove_tree(dir));
}

/* Epochs of different lengths, some empty: resuming at any step gives the same run. */
static void seeking_is_exact_among_small_weights(void)
{
    const char   *dir = scratch_dir();
    Mix           mix = open_mix(dir, true);
    LoaderSource  sources[] = {{.shards = &mix.plain, .weight = 0.1}, {.shards = &mix.thin, .weight = 0.3}};
    LoaderOptions options = {.mode = LOADER_PACKED, .seq_len = 16, .batch_size = 2, .shuffle = true, .seed = 8, .prefetch = 2};
    Loader       *loader;
    uint64_t      digests[60];
    const Feeds  *batch;
    EXPECT_OK(loader_create(&options, sources, 2, &loader));
    for (int i = 0; i < 60; i++) {
        EXPECT_OK(loader_next(loader, &batch));
        digests[i] = hash_bytes(batch->tokens, sizeof(int32_t) * 32, 0);
    }
    loader_destroy(loader);
    EXPECT_OK(loader_create(&options, sources, 2, &loader));
    for (int i = 57; i >= 0; i -= 5) {
        loader_seek(loader, i);
        for (int k = i; k < i + 3; k++) {
            EXPECT_OK(loader_next(loader, &batch));
            EXPECT(hash_bytes(batch->tokens, sizeof(int32_t) * 32, 0) == digests[k]);
        }
    }
    loader_destroy(loader);
    shard_set_close(&mix.plain);
    shard_set_close(&mix.thin);
    EXPECT_OK(file_remove_tree(dir));
}

/* Each epoch has all rows in an order of its own, which differs from the file's order. */
static void epochs_have_orders_of_their_own(void)
{
    enum { EPOCHS = 4, MOST_ROWS = 20 };
    const char *dir = scratch_dir();
    ShardSet    set = open_set(dir, true);
    for (int mode = 0; mode < 3; mode++) {
        uint64_t rows[EPOCHS + 1][MOST_ROWS];
        Loader  *loader = open_loader(
             &set,
             (LoaderOptions){.mode = (LoaderMode)mode, .seq_len = 16, .batch_size = 1, .num_epochs = EPOCHS, .shuffle = true, .seed = 2});
        int64_t count = loader_stats(loader)->rows_per_epoch;
        int32_t ids[5][16];
        Feeds   row = {.tokens = ids[0], .labels = ids[1], .positions = ids[2], .doc_start = ids[3], .doc_id = ids[4]};
        EXPECT(count > 5 && count <= MOST_ROWS);
        for (int64_t i = 0; i < count; i++) {
            EXPECT_OK(loader_read_row(loader, i, &row));
            rows[EPOCHS][i] = hash_bytes(row.tokens, sizeof ids[0], 0); /* the file's order */
        }
        for (int e = 0; e < EPOCHS; e++) {
            uint64_t sum[2] = {0};
            for (int64_t i = 0; i < count; i++) {
                const Feeds *batch;
                EXPECT_OK(loader_next(loader, &batch));
                rows[e][i] = hash_bytes(batch->tokens, sizeof ids[0], 0);
                sum[0] += rows[e][i];
                sum[1] += rows[EPOCHS][i];
            }
            EXPECT(sum[0] == sum[1]);
        }
        for (int e = 0; e <= EPOCHS; e++)
            for (int k = 0; k < e; k++) EXPECT(memcmp(rows[e], rows[k], sizeof rows[0][0] * (size_t)count) != 0);
        loader_destroy(loader);
    }
    shard_set_close(&set);
    EXPECT_OK(file_remove_tree(dir));
}

/* Neither side of a split is empty, even with few documents, for any seed and ratio. */
static void no_side_of_the_split_is_empty(void)
{
    const char *dir = scratch_dir();
    ShardSet    set;
    write_shard(path_in(dir, "shard-00000.tokens"), (const int[]){5, 6, 7}, 3, 500, true);
    EXPECT_OK(shard_set_open(dir, &set));
    for (uint64_t seed = 0; seed < 40; seed++)
        for (int r = 0; r < 3; r++) {
            const double ratios[] = {0.001, 0.3, 0.89};
            int64_t      documents = 0;
            for (int part = LOADER_TRAIN; part <= LOADER_VALIDATION; part++) {
                LoaderOptions options = {.mode = LOADER_PACKED,
                                         .part = (LoaderPart)part,
                                         .validation_ratio = ratios[r],
                                         .seq_len = 16,
                                         .batch_size = 1,
                                         .seed = seed};
                Loader       *loader = open_loader(&set, options);
                if (!loader) continue;
                EXPECT(loader_stats(loader)->num_documents >= 1);
                documents += loader_stats(loader)->num_documents;
                loader_destroy(loader);
            }
            EXPECT_INT(documents, 3);
        }
    shard_set_close(&set);
    EXPECT_OK(file_remove_tree(dir));
}

/* After resuming with another number of rows per step, the next row is the one after the last row read. */
static void resuming_counts_rows(void)
{
    const char   *dir = scratch_dir();
    ShardSet      set = open_set(dir, false);
    LoaderOptions options = {.mode = LOADER_PADDED, .seq_len = 64, .batch_size = 1, .num_epochs = 4, .shuffle = true, .prefetch = 2};
    const Feeds  *batch;
    for (int accumulate = 1; accumulate <= 4; accumulate++) {
        int seen[12] = {0};
        options.grad_accum_steps = 3;
        Loader *loader = open_loader(&set, options);
        for (int i = 0; i < 5 * 3; i++) {
            EXPECT_OK(loader_next(loader, &batch));
            seen[batch->doc_id[0]]++;
        }
        int64_t rows = loader_rows_before(loader, 5), trained;
        EXPECT_INT(rows, 15);
        EXPECT_INT(loader_rows_before(loader, 15), 44);
        loader_destroy(loader);
        options.grad_accum_steps = accumulate;
        loader = open_loader(&set, options);
        loader_resume(loader, 5, rows);
        EXPECT_INT(loader_num_steps(loader), 5 + (44 - 15 + accumulate - 1) / accumulate);
        EXPECT_NEAR(loader_epoch(loader, 5), 15.0 / 11, 1e-12);
        int64_t of_step = 0;
        for (int i = 0;; i++) {
            EXPECT_OK(loader_next(loader, &batch));
            if (!batch) break;
            EXPECT_INT(batch->step_index, 5 + i / accumulate);
            of_step = i % accumulate ? of_step + batch->num_trained : batch->num_trained;
            EXPECT_OK(loader_step_tokens(loader, batch->step_index, &trained));
            if (i % accumulate == accumulate - 1) EXPECT_INT(of_step, trained);
            if (batch->doc_id[0] >= 0) seen[batch->doc_id[0]]++;
        }
        for (int d = 0; d < 12; d++) EXPECT_INT(seen[d], d == 5 ? 0 : 4);
        loader_destroy(loader);
    }
    shard_set_close(&set);
    EXPECT_OK(file_remove_tree(dir));
}

/* Half an epoch ends after half of the rows; the last step is filled up with padding. */
static void parts_of_epochs_end_in_time(void)
{
    const char  *dir = scratch_dir();
    ShardSet     set = open_set(dir, false);
    const Feeds *batch;
    for (double epochs = 0.5; epochs < 3; epochs += 0.5) {
        Loader *loader = open_loader(
            &set, (LoaderOptions){.mode = LOADER_PADDED, .seq_len = 64, .batch_size = 8, .num_epochs = epochs, .shuffle = true});
        int64_t want = (int64_t)ceil(11 * epochs), rows = 0;
        EXPECT_INT(loader_num_steps(loader), (want + 7) / 8);
        for (;;) {
            EXPECT_OK(loader_next(loader, &batch));
            if (!batch) break;
            for (int b = 0; b < 8; b++) rows += batch->doc_id[(size_t)b * 64] >= 0;
        }
        EXPECT_INT(rows, want);
        EXPECT_NEAR(loader_epoch(loader, loader_num_steps(loader)), (double)want / 11, 1e-12);
        loader_destroy(loader);
    }
    shard_set_close(&set);
    EXPECT_OK(file_remove_tree(dir));
}

static void permutations_are_permutations(void)
{
    for (int64_t n = 1; n < 200; n += 13) {
        uint8_t seen[200] = {0};
        int     moved = 0;
        for (int64_t i = 0; i < n; i++) {
            int64_t at = permute_index(i, n, 5, 2);
            EXPECT(at >= 0 && at < n && !seen[at]++);
            moved += at != permute_index(i, n, 5, 3);
        }
        if (n > 20) EXPECT(moved > n / 2);
    }
    int64_t big = permute_index(12345678901, 1000000000000, 1, 1);
    EXPECT(big >= 0 && big < 1000000000000);
}

static void empty_data_is_an_error(void)
{
    const char *dir = scratch_dir();
    ShardSet    set;
    int         lengths[] = {1, 1};
    write_shard(path_in(dir, "shard-00000.tokens"), lengths, 2, 500, false);
    EXPECT_OK(shard_set_open(dir, &set));
    LoaderSource  source = {.shards = &set};
    LoaderOptions options = {.mode = LOADER_PACKED, .seq_len = 8, .batch_size = 1};
    Loader       *loader;
    EXPECT_FAILS(loader_create(&options, &source, 1, &loader), ERR_INVALID, "without a trained token");
    options.vocab_size = 100;
    EXPECT_FAILS(loader_create(&options, &source, 1, &loader), ERR_INVALID, "vocabulary of 500");
    shard_set_close(&set);
    write_shard(path_in(dir, "shard-00000.tokens"), (const int[]){9, 9, 9}, 3, 500, true);
    EXPECT_OK(shard_set_open(dir, &set));
    options = (LoaderOptions){.mode = LOADER_PACKED, .seq_len = 1, .batch_size = 1};
    for (int rule = LONG_TRUNCATE; rule <= LONG_DROP; rule++) {
        options.long_samples = (LongSamples)rule;
        if (rule == LONG_SPLIT) continue; /* the parts of split samples have labels */
        EXPECT_FAILS(loader_create(&options, &source, 1, &loader), ERR_INVALID,
                     "3 longer than sequence_len 1; nothing to learn from. Raise");
    }
    shard_set_close(&set);
    EXPECT_OK(file_remove_tree(dir));
}

TEST_MAIN(TEST(text_is_never_lost), TEST(stream_uses_every_token_and_label_once), TEST(layouts_of_a_batch_hold_the_same_rows),
          TEST(packed_and_padded_hold_the_same_samples), TEST(splitting_loses_no_label), TEST(seeking_is_exact_over_epochs),
          TEST(validation_and_training_share_no_document), TEST(one_document_is_split_by_tokens), TEST(weights_repeat_and_thin_out),
          TEST(small_weights_add_up), TEST(seeking_is_exact_among_small_weights), TEST(parts_of_epochs_end_in_time),
          TEST(resuming_counts_rows), TEST(epochs_have_orders_of_their_own), TEST(no_side_of_the_split_is_empty),
          TEST(permutations_are_permutations), TEST(empty_data_is_an_error))
