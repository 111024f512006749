/* Types of tensors: a dtype and dims. */
#include "ir/graph.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

TensorType type_make(DType dtype, int ndim, ...)
{
    TensorType type = {.dtype = dtype, .ndim = (uint8_t)ndim};
    va_list    args;
    va_start(args, ndim);
    for (int i = 0; i < ndim; i++) type.dim[i] = va_arg(args, int64_t);
    va_end(args);
    return type;
}

int64_t type_numel(const TensorType *type)
{
    int64_t n = type->ndim > 0;
    for (int i = 0; i < type->ndim; i++) n *= type->dim[i];
    return n;
}

int64_t type_bytes(const TensorType *type)
{
    return dtype_bytes(type->dtype, type_numel(type));
}

int64_t type_cols(const TensorType *type)
{
    return type->ndim ? type->dim[type->ndim - 1] : 0;
}

int64_t type_rows(const TensorType *type)
{
    int64_t n = type->ndim > 0;
    for (int i = 0; i + 1 < type->ndim; i++) n *= type->dim[i];
    return n;
}

bool type_same_dims(const TensorType *a, const TensorType *b)
{
    return a->ndim == b->ndim && memcmp(a->dim, b->dim, sizeof(int64_t) * a->ndim) == 0;
}

bool type_equal(const TensorType *a, const TensorType *b)
{
    return a->dtype == b->dtype && type_same_dims(a, b);
}

const char *type_text(const TensorType *type, char buf[64])
{
    int n = snprintf(buf, 64, "%s[", dtype_info(type->dtype)->name);
    for (int i = 0; i < type->ndim && n < 60; i++)
        n += snprintf(buf + n, (size_t)(64 - n), "%s%lld", i ? "," : "", (long long)type->dim[i]);
    if (n < 63) snprintf(buf + n, (size_t)(64 - n), "]");
    return buf;
}

Status type_check(const TensorType *type)
{
    double numel = 1;
    for (int d = 0; d < type->ndim; d++) {
        FAIL_IF(type->dim[d] <= 0, ERR_INVALID, "a dim would be %lld; dims are at least 1", (long long)type->dim[d]);
        numel *= (double)type->dim[d];
    }
    FAIL_IF(numel > (double)TYPE_MAX_NUMEL, ERR_INVALID, "a tensor of %.3g elements; at most %.3g are possible", numel,
            (double)TYPE_MAX_NUMEL);
    int block = dtype_info(type->dtype)->block;
    FAIL_IF(type_cols(type) % block, ERR_INVALID,
            "rows of %lld elements of %s, which are stored in blocks of %d; a row must be whole blocks", (long long)type_cols(type),
            dtype_info(type->dtype)->name, block);
    return OK;
}
