/* A scratch folder and small shards for the tests of src/data. */
#pragma once

#include "data/shard.h"
#include "files/file.h"
#include "test.h"

#include <unistd.h>

/* Makes an empty folder under TMPDIR; the calling test removes it with file_remove_tree. */
__attribute__((unused)) static const char *scratch_dir(void)
{
    static char path[4096];
    const char *base = getenv("TMPDIR");
    snprintf(path, sizeof path, "%s/sg-data-XXXXXX", base ? base : "/tmp");
    if (!mkdtemp(path)) abort();
    return path;
}

__attribute__((unused)) static const char *path_in(const char *dir, const char *name)
{
    static char paths[8][4200];
    static int  next;
    char       *path = paths[next++ % 8];
    snprintf(path, sizeof paths[0], "%s/%s", dir, name);
    return path;
}

/* Writes a shard of documents with these lengths; token i of document d is 1 + (97 * d + i) % (vocab - 1). has_mask: only the odd tokens of
 * each document are trained; otherwise all. */
__attribute__((unused)) static void write_shard(const char *path, const int *lengths, int count, int vocab, bool has_mask)
{
    ShardWriter *writer;
    EXPECT_OK(shard_writer_open(path, 7, vocab, has_mask, &writer));
    for (int d = 0; d < count; d++) {
        for (int i = 0; i < lengths[d]; i++) {
            int32_t id = 1 + (97 * d + i) % (vocab - 1);
            uint8_t trained = i % 2;
            EXPECT_OK(shard_writer_append(writer, &id, has_mask ? &trained : NULL, 1));
        }
        EXPECT_OK(shard_writer_end_document(writer));
    }
    EXPECT_OK(shard_writer_commit(writer, NULL));
}
