/* Any bytes are a shard whose documents can all be read, or an error. The header's checksum is made right for every second
 * size, so that the checks behind it are reached. */
#include "data/shard_format.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char  *copy = aligned_alloc(8, (size + 8) & ~(size_t)7);
    Shard *shard;
    if (size) memcpy(copy, data, size);
    if (size >= sizeof(ShardHeader)) {
        ShardHeader *header = (ShardHeader *)copy;
        if (header->reserved[0] % 2 == 0) header->file_size = size;
        if (header->reserved[1] % 2 == 0) header->header_checksum = shard_header_checksum(header);
    }
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
        shard_close(shard);
    }
    free(copy);
    return 0;
}
