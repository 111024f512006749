/* Any bytes open or are refused; in a file that opens, every tensor can be found, read and checked. */
#include "files/safetensors.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    void   *copy = aligned_alloc(64, (size + 64) / 64 * 64); /* aligned like a mapped file */
    StFile *file;
    float   value;
    DType   dtype;
    if (size) memcpy(copy, data, size);
    if (st_open_memory("fuzz", copy, size, &file) == OK) {
        size_t bytes = 0;
        for (size_t i = 0; i < st_count(file); i++) {
            const StTensor *tensor = st_at(file, i);
            if (st_find(file, tensor->name) != tensor) abort();
            if (st_check_range(tensor, DT_BF16) != OK && !st_dtype_is_float(tensor->dtype)) abort();
            if (tensor->numel && (st_to_f32(tensor, tensor->numel - 1, 1, &value) == OK) != st_dtype_is_float(tensor->dtype)) abort();
            if (st_dtype_to(tensor->dtype, &dtype) && st_dtype_from(dtype) != tensor->dtype) abort();
            bytes += tensor->bytes;
        }
        const StTensor *absent;
        if (st_require(file, "\n", &absent) == OK && st_find(file, "\n") != absent) abort();
        if (bytes > size) abort();
        (void)st_metadata(file, "format");
        st_close(file);
    }
    free(copy);
    return 0;
}
