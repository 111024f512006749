/* Hashes of files: equal to the hash of their bytes in memory; hashes of parts don't depend on the number of threads. */
#include "files/file.h"
#include "base/hash.h"
#include "test.h"

#include <stdlib.h>
#include <unistd.h>

static void write_bytes(const char *path, const char *data, size_t size)
{
    EXPECT_OK(file_write_atomic(path, data, size));
}

static uint64_t parts_hash(int threads, const char *path)
{
    ThreadPool *pool = NULL;
    uint64_t    hash = 0;
    if (threads > 0) EXPECT_OK(pool_create(threads, &pool));
    EXPECT_OK(file_hash_parts(pool, path, &hash));
    pool_destroy(pool);
    return hash;
}

static void hashes_are_those_of_the_bytes(void)
{
    char   path[] = "/tmp/test-file-hash-XXXXXX";
    size_t size = 2 * (size_t)FILE_HASH_PART_BYTES + 12345;
    char  *data = malloc(size);
    int    fd = mkstemp(path);
    EXPECT(fd >= 0 && data);
    close(fd);
    for (size_t i = 0; i < size; i++) data[i] = (char)(i * 2654435761u >> 13);
    static const size_t sizes[] = {0, 1, 1 << 18, FILE_HASH_PART_BYTES, FILE_HASH_PART_BYTES + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        uint64_t hash;
        write_bytes(path, data, sizes[i]);
        EXPECT_OK(file_hash(path, &hash));
        EXPECT(hash == hash_bytes(data, sizes[i], 0));
        EXPECT(parts_hash(0, path) == parts_hash(3, path));
    }
    write_bytes(path, data, size);
    uint64_t whole = parts_hash(0, path);
    EXPECT(whole == parts_hash(1, path) && whole == parts_hash(3, path));
    static const size_t changed[] = {0, FILE_HASH_PART_BYTES - 1, FILE_HASH_PART_BYTES, 2 * (size_t)FILE_HASH_PART_BYTES + 12344};
    for (size_t i = 0; i < sizeof changed / sizeof changed[0]; i++) {
        data[changed[i]]++;
        write_bytes(path, data, size);
        EXPECT(parts_hash(2, path) != whole);
        data[changed[i]]--;
    }
    write_bytes(path, data, size - 1);
    EXPECT(parts_hash(2, path) != whole);
    unlink(path);
    uint64_t hash;
    EXPECT_FAILS(file_hash_parts(NULL, path, &hash), ERR_NOT_FOUND, path);
    free(data);
}

TEST_MAIN(TEST(hashes_are_those_of_the_bytes))
