/* Shards: what is written can be read back; damage is refused. */
#include "data_util.h"

#include <signal.h>
#include <sys/resource.h>

static void tokens_documents_and_mask_come_back(void)
{
    const char *dir = scratch_dir(), *path = path_in(dir, "shard-00000.tokens");
    for (int vocab = 1000; vocab <= 100000; vocab *= 100) {
        int lengths[] = {5, 1, 700, 64, 3};
        write_shard(path, lengths, 5, vocab, true);
        Shard *shard;
        EXPECT_OK(shard_open(path, &shard));
        EXPECT_OK(shard_verify(shard));
        EXPECT_INT(shard_info(shard)->num_documents, 5);
        EXPECT_INT(shard_info(shard)->num_tokens, 773);
        EXPECT_INT(shard_info(shard)->num_trained, 2 + 0 + 350 + 32 + 1);
        EXPECT_INT(shard_info(shard)->token_bytes, vocab <= 65536 ? 2 : 4);
        for (int d = 0; d < 5; d++) {
            int64_t begin, count;
            int32_t ids[700];
            shard_document(shard, d, &begin, &count);
            EXPECT_INT(count, lengths[d]);
            EXPECT_OK(shard_read(shard, begin, count, ids));
            for (int i = 0; i < count; i++) {
                EXPECT_INT(ids[i], 1 + (97 * d + i) % (vocab - 1));
                EXPECT_INT(mask_bit(shard_mask(shard), begin + i), i % 2);
            }
        }
        shard_close(shard);
    }
    EXPECT_OK(file_remove_tree(dir));
}

static void equal_content_gives_equal_bytes(void)
{
    const char *dir = scratch_dir();
    int         lengths[] = {9, 8};
    uint64_t    a, b;
    write_shard(path_in(dir, "a"), lengths, 2, 500, true);
    write_shard(path_in(dir, "b"), lengths, 2, 500, true);
    EXPECT_OK(file_hash(path_in(dir, "a"), &a));
    EXPECT_OK(file_hash(path_in(dir, "b"), &b));
    EXPECT(a == b);
    EXPECT_OK(file_remove_tree(dir));
}

/* A changed byte of header or index, and any cut, must fail at opening. A changed byte of data must fail in verify. */
static void damage_is_found(void)
{
    const char *dir = scratch_dir(), *path = path_in(dir, "good"), *bad = path_in(dir, "bad");
    int         lengths[] = {30, 20};
    write_shard(path, lengths, 2, 500, true);
    Arena arena = {0};
    Str   text;
    EXPECT_OK(file_read(&arena, path, 1 << 20, &text));
    char *copy = arena_strndup(&arena, text.data, text.len);
    for (size_t i = 0; i < text.len; i++) {
        copy[i] ^= 0x41;
        EXPECT_OK(file_write_atomic(bad, copy, text.len));
        copy[i] ^= 0x41;
        Shard *shard = NULL;
        Status status = shard_open(bad, &shard);
        if (status == OK) status = shard_verify(shard);
        if (status != ERR_INVALID) test_fail(__FILE__, __LINE__, "byte %zu changed: not noticed", i);
        shard_close(shard);
    }
    for (size_t len = 0; len < text.len; len++) {
        EXPECT_OK(file_write_atomic(bad, copy, len));
        Shard *shard;
        EXPECT_FAILS(shard_open(bad, &shard), ERR_INVALID, "bad");
    }
    arena_deinit(&arena);
    EXPECT_OK(file_remove_tree(dir));
}

static void an_aborted_shard_leaves_nothing(void)
{
    const char  *dir = scratch_dir(), *path = path_in(dir, "x");
    ShardWriter *writer;
    int32_t      id = 3;
    EXPECT_OK(shard_writer_open(path, 7, 10, false, &writer));
    EXPECT_OK(shard_writer_append(writer, &id, NULL, 1));
    shard_writer_abort(writer);
    EXPECT(!is_there(path));
    EXPECT(!is_there(path_in(dir, "x.tmp")));
    ShardSet set;
    EXPECT_FAILS(shard_set_open(dir, &set), ERR_NOT_FOUND, "no token shards");
    EXPECT_OK(file_remove_tree(dir));
}

/* Writes one document of `count` 2-byte tokens; count is a multiple of 4. The file has 2 * count + 16 bytes after the header. */
static Status write_counted(const char *path, int64_t count, int32_t *ids)
{
    ShardWriter *writer;
    for (int64_t i = 0; i < count; i++) ids[i] = (int32_t)(i * 7919 % 50021);
    TRY(shard_writer_open(path, 7, 50021, false, &writer));
    Status status = shard_writer_append(writer, ids, NULL, count);
    if (status == OK) return shard_writer_commit(writer, NULL);
    shard_writer_abort(writer);
    return status;
}

static void sizes_around_whole_blocks_come_back(void)
{
    const int64_t block = 1 << 20; /* bytes that are written and hashed at once */
    const int64_t sizes[] = {block - 136, block - 128,     block - 120, block - 8,       block,
                             block + 8,   2 * block - 128, 2 * block,   3 * block + 4096};
    const char   *dir = scratch_dir(), *path = path_in(dir, "x");
    int32_t      *ids = malloc(sizeof *ids * 2 * (size_t)block), *read = malloc(sizeof *read * 2 * (size_t)block);
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        int64_t count = (sizes[k] - 16) / 2;
        Shard  *shard;
        EXPECT_OK(write_counted(path, count, ids));
        EXPECT_INT(bytes_of(path), 128 + sizes[k]);
        EXPECT_OK(shard_open(path, &shard));
        EXPECT_OK(shard_verify(shard));
        EXPECT_INT(shard_info(shard)->num_tokens, count);
        EXPECT_OK(shard_read(shard, 0, count, read));
        EXPECT(memcmp(ids, read, sizeof *ids * (size_t)count) == 0);
        shard_close(shard);
    }
    free(ids);
    free(read);
    EXPECT_OK(file_remove_tree(dir));
}

/* The size limit cuts a write in the middle of a block, at an odd offset. */
static void a_full_disk_is_an_error(void)
{
    const char   *dir = scratch_dir(), *path = path_in(dir, "x");
    int32_t      *ids = malloc(sizeof *ids << 21);
    struct rlimit was, limit;
    getrlimit(RLIMIT_FSIZE, &was);
    limit = (struct rlimit){(3 << 19) + 100, was.rlim_max};
    signal(SIGXFSZ, SIG_IGN);
    setrlimit(RLIMIT_FSIZE, &limit);
    EXPECT_FAILS(write_counted(path, 1 << 21, ids), ERR_IO, "x.tmp: File too large");
    setrlimit(RLIMIT_FSIZE, &was);
    EXPECT(!is_there(path));
    EXPECT(!is_there(path_in(dir, "x.tmp")));
    EXPECT_INT(symlink("/dev/full", path_in(dir, "x.tmp")), 0);
    EXPECT_FAILS(write_counted(path, 1 << 21, ids), ERR_NO_FIT, "x.tmp: No space left on device");
    EXPECT(!is_there(path));
    free(ids);
    EXPECT_OK(file_remove_tree(dir));
}

static void a_set_adds_up_its_shards(void)
{
    const char *dir = scratch_dir();
    int         lengths[] = {4, 6, 5};
    write_shard(path_in(dir, "shard-00000.tokens"), lengths, 2, 500, false);
    write_shard(path_in(dir, "shard-00001.tokens"), lengths, 3, 500, false);
    ShardSet set;
    EXPECT_OK(shard_set_open(dir, &set));
    EXPECT_INT(set.num_shards, 2);
    EXPECT_INT(set.num_tokens, 25);
    EXPECT_INT(set.num_documents, 5);
    EXPECT_INT(set.num_trained, 20);
    shard_set_close(&set);
    write_shard(path_in(dir, "shard-00002.tokens"), lengths, 3, 501, false);
    EXPECT_FAILS(shard_set_open(dir, &set), ERR_INVALID, "another tokenizer");
    EXPECT_OK(file_remove_tree(dir));
}

TEST_MAIN(TEST(tokens_documents_and_mask_come_back), TEST(equal_content_gives_equal_bytes), TEST(damage_is_found),
          TEST(an_aborted_shard_leaves_nothing), TEST(sizes_around_whole_blocks_come_back), TEST(a_full_disk_is_an_error),
          TEST(a_set_adds_up_its_shards))
