/* Writing GGUF files. */
#include "files/gguf.h"

#include "base/scoped.h"

#include <string.h>

/* ---- keys ---- */

static void put_number(StrBuf *out, uint64_t value, size_t bytes)
{
    strbuf_append(out, &value, bytes); /* GGUF is little-endian, and so is every machine that this runs on */
}

static void put_text(StrBuf *out, Str text)
{
    put_number(out, text.len, 8);
    strbuf_append(out, text.data, text.len);
}

static StrBuf *begin_value(GgufKeys *keys, const char *key, GgufValueType type)
{
    keys->count++;
    put_text(&keys->bytes, str_of(key));
    put_number(&keys->bytes, type, 4);
    return &keys->bytes;
}

static StrBuf *begin_array(GgufKeys *keys, const char *key, GgufValueType type, size_t count)
{
    StrBuf *out = begin_value(keys, key, GGUF_VALUE_ARRAY);
    put_number(out, type, 4);
    put_number(out, count, 8);
    return out;
}

void gguf_keys_deinit(GgufKeys *keys)
{
    strbuf_deinit(&keys->bytes);
    *keys = (GgufKeys){0};
}

void gguf_put_u32(GgufKeys *keys, const char *key, uint32_t value)
{
    put_number(begin_value(keys, key, GGUF_VALUE_U32), value, 4);
}

void gguf_put_f32(GgufKeys *keys, const char *key, float value)
{
    strbuf_append(begin_value(keys, key, GGUF_VALUE_F32), &value, 4);
}

void gguf_put_bool(GgufKeys *keys, const char *key, bool value)
{
    put_number(begin_value(keys, key, GGUF_VALUE_BOOL), value, 1);
}

void gguf_put_str(GgufKeys *keys, const char *key, Str value)
{
    put_text(begin_value(keys, key, GGUF_VALUE_STRING), value);
}

void gguf_put_strs(GgufKeys *keys, const char *key, const Str *values, size_t count)
{
    StrBuf *out = begin_array(keys, key, GGUF_VALUE_STRING, count);
    for (size_t i = 0; i < count; i++) put_text(out, values[i]);
}

void gguf_put_i32s(GgufKeys *keys, const char *key, const int32_t *values, size_t count)
{
    strbuf_append(begin_array(keys, key, GGUF_VALUE_I32, count), values, count * sizeof *values);
}

void gguf_put_f32s(GgufKeys *keys, const char *key, const float *values, size_t count)
{
    strbuf_append(begin_array(keys, key, GGUF_VALUE_F32, count), values, count * sizeof *values);
}

/* ---- writing the file ---- */

int64_t gguf_decl_numel(const GgufDecl *decl)
{
    int64_t numel = 1;
    for (int i = 0; i < decl->ndim; i++) numel *= decl->dim[i];
    return numel;
}

static uint64_t aligned(uint64_t at)
{
    return (at + GGUF_ALIGNMENT - 1) / GGUF_ALIGNMENT * GGUF_ALIGNMENT;
}

static void put_infos(StrBuf *out, const GgufDecl *decls, size_t count)
{
    uint64_t at = 0;
    for (size_t i = 0; i < count; i++) {
        const GgufDecl *decl = &decls[i];
        CHECK(decl->dim[decl->ndim - 1] % gguf_block(decl->type) == 0);
        put_text(out, str_of(decl->name));
        put_number(out, (uint64_t)decl->ndim, 4);
        for (int k = decl->ndim - 1; k >= 0; k--) put_number(out, (uint64_t)decl->dim[k], 8);
        put_number(out, decl->type, 4);
        put_number(out, at, 8);
        at = aligned(at + (uint64_t)gguf_bytes(decl->type, gguf_decl_numel(decl)));
    }
}

static Status pad(FileWriter *out)
{
    static const char zeros[GGUF_ALIGNMENT];
    uint64_t          at = file_writer_size(out);
    return file_writer_append(out, zeros, (size_t)(aligned(at) - at));
}

static Status append_tensors(const GgufDecl *decls, size_t count, GgufSource source, void *context, FileWriter *out)
{
    for (size_t i = 0; i < count; i++) {
        uint64_t begin = file_writer_size(out);
        TRY(source(context, i, out));
        CHECK(file_writer_size(out) - begin == (uint64_t)gguf_bytes(decls[i].type, gguf_decl_numel(&decls[i])));
        TRY(pad(out));
    }
    return OK;
}

Status gguf_write(const char *path, const GgufKeys *keys, const GgufDecl *decls, size_t count, GgufSource source, void *context)
{
    FileWriter *out;
    SCOPED_STRBUF(head);
    strbuf_puts(&head, "GGUF");
    put_number(&head, GGUF_VERSION, 4);
    put_number(&head, count, 8);
    put_number(&head, keys->count, 8);
    strbuf_append(&head, keys->bytes.data, keys->bytes.len);
    put_infos(&head, decls, count);
    TRY(file_writer_open(path, &out));
    Status status = file_writer_append(out, head.data, head.len);
    if (status == OK) status = pad(out);
    if (status == OK) status = append_tensors(decls, count, source, context, out);
    return file_writer_end(out, status);
}
