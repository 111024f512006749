/* Any bytes are a shard whose documents can all be read, or an error. So that later checks are reached, fields may first be corrected: the
 * file size, the checksum, the input's size, the data's checksum. Reserved fields of the header choose which. */
#include "data/shard_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Copies the input as a file, and corrects the fields that its header asks for; *size becomes the size of the copy. */
static char *shard_make(const uint8_t *data, size_t *size)
{
    enum { MOST = 1 << 14 };
    size_t had = *size;
    char  *copy = calloc(1, MOST + had);
    if (had) memcpy(copy, data, had);
    if (had < sizeof(ShardHeader)) return copy;
    ShardHeader *header = (ShardHeader *)copy;
    bool         is_small = header->num_tokens < MOST && header->num_documents < MOST && header->num_columns < MOST &&
                    header->token_numbers < MOST; /* so that products don't overflow */
    uint64_t end = is_small ? shard_layout(header).end : MOST;
    if (header->reserved[2] % 2 == 0 && end < MOST) *size = end;
    if (header->reserved[0] % 2 == 0) header->file_size = *size;
    if (header->reserved[3] % 2 == 0) header->data_checksum = shard_fold(0, copy + sizeof *header, *size - sizeof *header);
    if (header->reserved[1] % 2 == 0) header->header_checksum = shard_header_checksum(header);
    return copy;
}

/* The same bytes read from a file must give the same shard. */
static void check_file(const char *bytes, size_t size, const Shard *shard)
{
    char     path[64];
    int      file = memfd_create("shard", 0);
    ShardSet set;
    if (file < 0 || write(file, bytes, size) != (ssize_t)size) abort();
    snprintf(path, sizeof path, "/proc/self/fd/%d", file);
    if ((shard_set_open(path, &set) == OK) != (shard != NULL)) abort();
    if (shard && set.num_tokens != shard_info(shard)->num_tokens) abort();
    if (shard) shard_set_close(&set);
    close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char  *copy = shard_make(data, &size);
    Shard *shard;
    if (shard_open_bytes("fuzz", copy, size, &shard) == OK) {
        const ShardInfo *info = shard_info(shard);
        int64_t          sum = 0, trained = 0;
        for (int64_t i = 0; i < info->num_documents; i++) {
            int64_t  begin, count;
            int32_t *ids;
            shard_document(shard, i, &begin, &count);
            sum += count;
            ids = malloc(sizeof *ids * (size_t)count);
            if (shard_read(shard, begin, count, ids) == OK)
                for (int64_t k = 0; k < count; k++)
                    if (ids[k] < 0 || ids[k] >= info->vocab_size) abort();
            free(ids);
            for (int64_t k = 0; shard_mask(shard) && k < count; k++) trained += mask_bit(shard_mask(shard), begin + k);
        }
        if (sum != info->num_tokens || trained > sum) abort();
        if (shard_verify(shard) != OK && !*status_message()) abort();
    }
    if (size % 64 == 8) check_file(copy, size, shard);
    shard_close(shard);
    free(copy);
    return 0;
}
