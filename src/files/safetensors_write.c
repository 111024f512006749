/* The writer: the header first, then each tensor as its source delivers it, through a FileWriter. */
#include "base/compare.h"
#include "base/json.h"
#include "base/scoped.h"
#include "files/safetensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t st_decl_bytes(const StDecl *decl)
{
    size_t bits = (size_t)st_dtype_bits(decl->dtype);
    for (int i = 0; i < decl->ndim; i++) CHECK(!__builtin_mul_overflow(bits, (size_t)decl->dim[i], &bits));
    CHECK(bits % 8 == 0);
    return bits / 8;
}

/* Sorts the indices in `picked` by descending element size, so that each tensor starts at a multiple of its element size. */
static void sort_by_width(const StDecl *decls, size_t *picked, size_t count, Arena *scratch)
{
    size_t *sorted = arena_array(scratch, size_t, count), n = 0;
    for (int bits = 64; bits > 0; bits--)
        for (size_t i = 0; i < count; i++)
            if (st_dtype_bits(decls[picked[i]].dtype) == bits) sorted[n++] = picked[i];
    CHECK(n == count);
    if (count) memcpy(picked, sorted, count * sizeof *picked);
}

static void write_header(StrBuf *out, const StDecl *decls, const size_t *picked, size_t count, const char *const *metadata)
{
    static const char *const standard[] = {"format", "pt", NULL};
    if (!metadata) metadata = standard;
    strbuf_append(out, "\0\0\0\0\0\0\0\0{\"__metadata__\":{", 8 + 17);
    for (size_t i = 0; metadata[i]; i += 2) {
        if (i) strbuf_putc(out, ',');
        json_write_string(out, metadata[i], strlen(metadata[i]));
        strbuf_putc(out, ':');
        json_write_string(out, metadata[i + 1], strlen(metadata[i + 1]));
    }
    strbuf_putc(out, '}');
    size_t at = 0;
    for (size_t i = 0; i < count; i++) {
        const StDecl *decl = &decls[picked[i]];
        strbuf_putc(out, ',');
        json_write_string(out, decl->name, strlen(decl->name));
        strbuf_printf(out, ":{\"dtype\":\"%s\",\"shape\":[", st_dtype_name(decl->dtype));
        for (int d = 0; d < decl->ndim; d++) strbuf_printf(out, "%s%lld", d ? "," : "", (long long)decl->dim[d]);
        size_t end = at + st_decl_bytes(decl);
        strbuf_printf(out, "],\"data_offsets\":[%zu,%zu]}", at, end);
        at = end;
    }
    strbuf_putc(out, '}');
    while (out->len % 8) strbuf_putc(out, ' ');
    uint64_t header_bytes = out->len - 8;
    memcpy(out->data, &header_bytes, 8);
}

static Status write_tensors(FileWriter *writer, const StDecl *decls, const size_t *picked, size_t count, StSource source, void *context)
{
    for (size_t i = 0; i < count; i++) {
        const StDecl *decl = &decls[picked[i]];
        size_t        before = file_writer_size(writer), bytes = st_decl_bytes(decl);
        if (decl->data)
            TRY(file_writer_append(writer, decl->data, bytes));
        else
            TRY(source(context, picked[i], writer));
        CHECK(file_writer_size(writer) - before == bytes);
    }
    return OK;
}

static Status write_whole(const char *path, Str header, const StDecl *decls, const size_t *picked, size_t count, StSource source,
                          void *context)
{
    FileWriter *writer;
    TRY(file_writer_open(path, &writer));
    Status status = file_writer_append(writer, header.data, header.len);
    if (status == OK) status = write_tensors(writer, decls, picked, count, source, context);
    return file_writer_end(writer, status);
}

/* Writes this rank's part of the file. */
static Status write_part(Comm *comm, const char *path, Str header, const StDecl *decls, const size_t *picked, size_t count, StSource source,
                         void *context)
{
    FileWriter *writer;
    size_t      size = header.len;
    for (size_t i = 0; i < count; i++) size += st_decl_bytes(&decls[picked[i]]);
    TRY(file_writer_open_part(path, (int64_t)size, &writer));
    Status status = comm_rank(comm) == 0 ? file_writer_append(writer, header.data, header.len) : file_writer_skip(writer, header.len);
    if (status == OK) status = write_tensors(writer, decls, picked, count, source, context);
    if (status == OK) return file_writer_close_part(writer);
    file_writer_abort(writer);
    return status;
}

static Status write_together(Comm *comm, const char *path, Str header, const StDecl *decls, const size_t *picked, size_t count,
                             StSource source, void *context)
{
    Status status = comm_agree(comm, write_part(comm, path, header, decls, picked, count, source, context));
    if (comm_rank(comm) != 0) return comm_agree(comm, status);
    if (status == OK) return comm_agree(comm, file_publish_parts(path));
    file_remove_parts(path);
    return comm_agree(comm, status);
}

static Status write_picked(Comm *comm, const char *path, const StDecl *decls, size_t *picked, size_t count, const char *const *metadata,
                           StSource source, void *context, Arena *scratch)
{
    sort_by_width(decls, picked, count, scratch);
    SCOPED_STRBUF(text);
    write_header(&text, decls, picked, count, metadata);
    Str header = {text.data, text.len};
    FAIL_IF(header.len - 8 > ST_MAX_HEADER_BYTES, ERR_UNSUPPORTED, "%s: a header of %zu bytes is above the format's limit", path,
            header.len);
    return comm ? write_together(comm, path, header, decls, picked, count, source, context)
                : write_whole(path, header, decls, picked, count, source, context);
}

/* Refuses two tensors of one name: no reader could open the file. */
static Status check_names(const char *path, const StDecl *decls, size_t count, Arena *scratch)
{
    const char **names = arena_array(scratch, const char *, count + 1);
    for (size_t i = 0; i < count; i++) names[i] = decls[i].name;
    qsort(names, count, sizeof *names, compare_texts);
    for (size_t i = 1; i < count; i++)
        FAIL_IF(strcmp(names[i - 1], names[i]) == 0, ERR_INVALID, "%s: two tensors are named %s; expected a name of its own for each", path,
                names[i]);
    return OK;
}

static size_t *pick_all(Arena *scratch, size_t count)
{
    size_t *picked = arena_array(scratch, size_t, count);
    for (size_t i = 0; i < count; i++) picked[i] = i;
    return picked;
}

Status st_write_together(Comm *comm, const char *path, const StDecl *decls, size_t count, const char *const *metadata, StSource source,
                         void *context)
{
    SCOPED_ARENA(scratch);
    TRY(check_names(path, decls, count, &scratch));
    return write_picked(comm, path, decls, pick_all(&scratch, count), count, metadata, source, context, &scratch);
}

Status st_write(const char *path, const StDecl *decls, size_t count, const char *const *metadata, StSource source, void *context)
{
    return st_write_together(NULL, path, decls, count, metadata, source, context);
}

typedef struct IndexEntry {
    const char *name;
    size_t      shard;
} IndexEntry;

static int by_name(const void *a, const void *b)
{
    return strcmp(((const IndexEntry *)a)->name, ((const IndexEntry *)b)->name);
}

static Status write_index(const char *folder, const char *stem, IndexEntry *entries, size_t count, size_t num_shards, size_t total_bytes,
                          Arena *scratch)
{
    SCOPED_STRBUF(text);
    qsort(entries, count, sizeof *entries, by_name);
    strbuf_printf(&text, "{\n  \"metadata\": {\n    \"total_size\": %zu\n  },\n  \"weight_map\": {", total_bytes);
    for (size_t i = 0; i < count; i++) {
        strbuf_puts(&text, i ? ",\n    " : "\n    ");
        json_write_string(&text, entries[i].name, strlen(entries[i].name));
        strbuf_printf(&text, ": \"%s-%05zu-of-%05zu.safetensors\"", stem, entries[i].shard + 1, num_shards);
    }
    strbuf_puts(&text, "\n  }\n}\n");
    return file_write_atomic(arena_printf(scratch, "%s/%s.safetensors.index.json", folder, stem), text.data, text.len);
}

static Status write_shards(Comm *comm, const char *folder, const char *stem, const StDecl *decls, IndexEntry *entries, size_t count,
                           size_t num_shards, StSource source, void *context, Arena *scratch)
{
    size_t *all = pick_all(scratch, count), total = 0;
    for (size_t first = 0, end; first < count; first = end) {
        for (end = first; end < count && entries[end].shard == entries[first].shard; end++) total += st_decl_bytes(&decls[end]);
        const char *path = arena_printf(scratch, "%s/%s-%05zu-of-%05zu.safetensors", folder, stem, entries[first].shard + 1, num_shards);
        TRY(write_picked(comm, path, decls, all + first, end - first, NULL, source, context, scratch));
    }
    if (comm_rank(comm) != 0) return OK;
    TRY(write_index(folder, stem, entries, count, num_shards, total, scratch));
    return file_remove_tree(arena_printf(scratch, "%s/%s.safetensors", folder, stem));
}

Status st_write_folder_together(Comm *comm, const char *folder, const char *stem, const StDecl *decls, size_t count, size_t max_shard_bytes,
                                StSource source, void *context)
{
    SCOPED_ARENA(scratch);
    IndexEntry *entries = arena_array(&scratch, IndexEntry, count);
    size_t      shard = 0, used = 0;
    for (size_t i = 0; i < count; i++) {
        size_t bytes = st_decl_bytes(&decls[i]);
        if (used > 0 && bytes > max_shard_bytes - (used < max_shard_bytes ? used : max_shard_bytes)) {
            shard++;
            used = 0;
        }
        used += bytes;
        entries[i] = (IndexEntry){decls[i].name, shard};
    }
    Status status = check_names(folder, decls, count, &scratch);
    if (status == OK) status = comm_agree(comm, comm_rank(comm) == 0 ? file_make_dirs(folder) : OK);
    if (status == OK && shard > 0) {
        status = write_shards(comm, folder, stem, decls, entries, count, shard + 1, source, context, &scratch);
    } else if (status == OK) {
        const char *path = arena_printf(&scratch, "%s/%s.safetensors", folder, stem);
        status = write_picked(comm, path, decls, pick_all(&scratch, count), count, NULL, source, context, &scratch);
        if (status == OK && comm_rank(comm) == 0) status = file_remove_tree(arena_printf(&scratch, "%s.index.json", path));
    }
    return comm_agree(comm, status);
}

Status st_write_folder(const char *folder, const char *stem, const StDecl *decls, size_t count, size_t max_shard_bytes, StSource source,
                       void *context)
{
    return st_write_folder_together(NULL, folder, stem, decls, count, max_shard_bytes, source, context);
}
