/* Any tensors with any quantization_config are read as quantised weights or refused; every element of a weight that is read can be
 * decoded. */
#include "model/quantised.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void read_tensors(const void *data, size_t size, QuantisedFormat format)
{
    Arena   arena = {0};
    StFile *file;
    float   values[3], *scratch = NULL;
    if (st_open_memory("fuzz", data, size, &file) != OK) return;
    if (quantised_open(&arena, file, format, ST_BF16) == OK) {
        for (size_t i = 0; i < st_count(file); i++) {
            const StTensor        *tensor = st_at(file, i);
            const QuantisedTensor *codes = quantised_of(tensor);
            if (st_find(file, tensor->name) != tensor || !st_dtype_is_float(tensor->dtype)) abort();
            Status  status = st_check_range(tensor, DT_F32); /* status of reading all elements */
            int64_t count = tensor->numel < 3 ? tensor->numel : 3;
            if (st_to_f32(tensor, tensor->numel - count, count, values) != OK) abort();
            for (int64_t k = 0; k < count && status == OK; k++)
                if (values[k] - values[k] != 0) abort();
            const WeightFormat *kept = codes ? quantised_weight_format(codes) : NULL;
            for (int k = 0; kept && k < kept->num_parts; k++)
                if (!quantised_part(codes, k, &scratch)) abort();
        }
    }
    free(scratch);
    st_close(file);
    arena_deinit(&arena);
}

static void read_config(const void *data, size_t size)
{
    Arena           arena = {0};
    JsonValue       config;
    QuantisedFormat format = QUANTISED_NONE;
    if (json_parse(&arena, "fuzz", data, size, &config) == OK && quantised_parse(&config, "fuzz", &format) == OK &&
        format == QUANTISED_NONE)
        abort();
    arena_deinit(&arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    void *copy = aligned_alloc(64, (size + 64) / 64 * 64); /* aligned like a mapped file */
    if (size) memcpy(copy, data, size);
    for (int format = QUANTISED_NF4; format <= QUANTISED_NVFP4; format++) read_tensors(copy, size, (QuantisedFormat)format);
    read_config(copy, size);
    free(copy);
    return 0;
}
