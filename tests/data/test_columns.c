/* Columns of numbers: each cell of a batch holds the number of its own token or of its label, for every layout of rows. */
#include "data/loader.h"
#include "data/tokenize.h"
#include "data_util.h"

enum { VOCAB = 200, SEQ = 16, SIZE = 3 };

/* A token's number k is computed from the token's id, so that any cell can be checked alone. */
static float number_of(int32_t id, int k)
{
    return (float)(id * 8 + k) / 4;
}

static const OwnInput inputs[] = {
    {.name = "own", .dtype = DT_F32, .size = 1},
    {.name = "target", .dtype = DT_F32, .size = SIZE, .of_target = true},
    {.name = "whole", .dtype = DT_I32, .size = 1, .pad = -100},
    {.name = "label", .dtype = DT_I32, .size = 1, .pad = -100, .of_target = true},
};

static void write_columns(const char *path, const int *lengths, int count, bool has_mask)
{
    static const ShardColumn columns[] = {
        {.name = "whole", .size = 1}, {.name = "target", .size = SIZE}, {.name = "own", .size = 1}, {.name = "label", .size = 1}};
    ShardWriter *writer;
    EXPECT_OK(shard_writer_open(path, 7, VOCAB, has_mask, &writer));
    shard_writer_set_columns(writer, columns, 4);
    for (int d = 0; d < count; d++) {
        for (int i = 0; i < lengths[d]; i++) {
            int32_t id = 1 + (97 * d + i) % (VOCAB - 1);
            uint8_t trained = i % 2;
            float   numbers[] = {(float)id, number_of(id, 0), number_of(id, 1), number_of(id, 2), number_of(id, 0), (float)id};
            EXPECT_OK(shard_writer_append(writer, &id, has_mask ? &trained : NULL, 1));
            shard_writer_append_numbers(writer, numbers, 1);
        }
        EXPECT_OK(shard_writer_end_document(writer));
    }
    EXPECT_OK(shard_writer_commit(writer, NULL));
}

/* next: the id after the cell's token, for cells with a masked label; -1: unknown. */
static void expect_cell(const Feeds *batch, int64_t i, int32_t next)
{
    const float   *own = batch->array[FEED_COUNT], *target = batch->array[FEED_COUNT + 1];
    const int32_t *whole = batch->array[FEED_COUNT + 2], *label = batch->array[FEED_COUNT + 3];
    bool           is_token = batch->doc_id[i] >= 0;
    EXPECT(own[i] == (is_token ? number_of(batch->tokens[i], 0) : 0));
    EXPECT(whole[i] == (is_token ? batch->tokens[i] : -100));
    if (batch->labels[i] != LABEL_IGNORE) next = batch->labels[i];
    bool is_cut = next < 0 && is_token && i % SEQ == batch->doc_start[i] + SEQ - 1 &&
                  label[i] >= 0; /* the row ends within a document, so its last label isn't trained */
    if (is_cut) next = batch->tokens[i] % (VOCAB - 1) + 1;
    EXPECT(label[i] == (next >= 0 ? next : -100));
    for (int k = 0; k < SIZE; k++) EXPECT(target[i * SIZE + k] == (next >= 0 ? number_of(next, k) : 0));
}

static void expect_batch(const Feeds *batch, int64_t rows)
{
    for (int64_t i = 0; i < rows * SEQ; i++) {
        bool    goes_on = i % SEQ < SEQ - 1 && batch->doc_id[i] >= 0 && batch->doc_id[i + 1] == batch->doc_id[i];
        int32_t next = goes_on && batch->positions[i + 1] == batch->positions[i] + 1 ? batch->tokens[i + 1] : -1;
        expect_cell(batch, i, next);
    }
}

static void each_cell_has_its_own_numbers(void)
{
    static const int lengths[] = {5, 40, 1, 17, 16, 3, 90, 2};
    const char      *dir = scratch_dir();
    for (int masked = 0; masked < 2; masked++) {
        write_columns(path_in(dir, "shard-00000.tokens"), lengths, 8, masked);
        write_columns(path_in(dir, "shard-00001.tokens"), lengths + 2, 6, masked);
        ShardSet set;
        EXPECT_OK(shard_set_open(dir, &set));
        for (int s = 0; s < set.num_shards; s++) EXPECT_OK(shard_verify(set.shards[s]));
        for (int mode = LOADER_STREAM; mode <= LOADER_PADDED; mode++)
            for (int prefetch = 0; prefetch < 3; prefetch += 2) {
                LoaderOptions options = {.mode = (LoaderMode)mode,
                                         .seq_len = SEQ,
                                         .batch_size = 3,
                                         .long_samples = LONG_SPLIT,
                                         .num_epochs = 2,
                                         .shuffle = true,
                                         .prefetch = prefetch,
                                         .inputs = inputs,
                                         .num_inputs = 4};
                Loader       *loader;
                const Feeds  *batch;
                if (masked && mode == LOADER_STREAM) continue;
                EXPECT_OK(loader_create(&options, &(LoaderSource){.shards = &set}, 1, &loader));
                do {
                    EXPECT_OK(loader_next(loader, &batch));
                    if (batch) expect_batch(batch, 3);
                } while (batch);
                loader_destroy(loader);
            }
        shard_set_close(&set);
    }
    EXPECT_OK(file_remove_tree(dir));
}

static void other_sizes_and_fractions_are_errors(void)
{
    const char *dir = scratch_dir();
    ShardSet    set;
    Loader     *loader;
    OwnInput    wrong = {.name = "target", .dtype = DT_F32, .size = 2};
    write_columns(path_in(dir, "shard-00000.tokens"), (const int[]){9}, 1, true);
    EXPECT_OK(shard_set_open(dir, &set));
    LoaderOptions options = {.mode = LOADER_PACKED, .seq_len = SEQ, .batch_size = 1, .inputs = &wrong, .num_inputs = 1};
    EXPECT_FAILS(loader_create(&options, &(LoaderSource){.shards = &set}, 1, &loader), ERR_INVALID,
                 "input target are 3 a token; expected 2");
    wrong = (OwnInput){.name = "own", .dtype = DT_I32, .size = 1};
    EXPECT_OK(loader_create(&options, &(LoaderSource){.shards = &set}, 1, &loader));
    loader_destroy(loader);
    wrong = (OwnInput){.name = "target", .dtype = DT_I32, .size = 3};
    EXPECT_FAILS(loader_create(&options, &(LoaderSource){.shards = &set}, 1, &loader), ERR_INVALID, "with fractions; expected whole ones");
    shard_set_close(&set);
    EXPECT_OK(file_remove_tree(dir));
}

static void damage_is_noticed(void)
{
    const char *dir = scratch_dir(), *path = path_in(dir, "shard-00000.tokens");
    Arena       arena = {0};
    Str         bytes;
    Shard      *shard;
    write_columns(path, (const int[]){9, 4}, 2, true);
    EXPECT_OK(file_read(&arena, path, 1 << 20, &bytes));
    char *copy = arena_alloc(&arena, bytes.len + 8);
    copy += -(uintptr_t)copy & 7;
    for (size_t i = 0; i < bytes.len; i++) { /* opening the shard or verifying its checksum finds each changed byte */
        memcpy(copy, bytes.data, bytes.len);
        copy[i] ^= 0x41;
        Status status = shard_open_bytes("copy", copy, bytes.len, &shard);
        if (status != OK) continue;
        EXPECT(shard_verify(shard) != OK);
        shard_close(shard);
    }
    status_clear();
    arena_deinit(&arena);
    EXPECT_OK(file_remove_tree(dir));
}

TEST_MAIN(TEST(each_cell_has_its_own_numbers), TEST(other_sizes_and_fractions_are_errors), TEST(damage_is_noticed))
