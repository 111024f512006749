/* Rows from columns (Dremel's record assembly): the definition level of a value says how much of its path is present; its repetition level
 * says which list it continues. A row is written by walking the schema and pulling values from the leaves. */
#include "data/parquet.h"

#include "base/array.h"
#include "base/json.h"
#include "data/parquet_column.h"
#include "data/parquet_value.h"
#include "data/stream.h"
#include "files/file.h"

#include <stdlib.h>
#include <string.h>

/* An entry of a map: its bytes in the row's text. */
typedef struct MapEntry {
    size_t begin, end, key_end;
    bool   is_repeated; /* a later entry has the same key */
} MapEntry;

struct ParquetReader {
    Arena          arena;
    const char    *path;
    FileMap        map; /* empty if the file is borrowed bytes */
    const uint8_t *file;
    size_t         size;
    ParquetMeta    meta;
    ColumnReader  *columns;   /* (num_leaves) */
    int32_t        group;     /* the current row group */
    int64_t        rows_left; /* rows of the group that aren't read yet */
    uint64_t       given_bytes;
    MapEntry      *entries; /* heap: entries of the maps being written */
    size_t         num_entries, entry_capacity;
};

static Status write_node(ParquetReader *reader, const ParquetNode *node, StrBuf *out);

/* Consumes the one value that every leaf below an absent node holds. */
static Status skip_absent(ParquetReader *reader, const ParquetNode *node)
{
    if (node->num_children == 0) {
        PqValue ignored;
        return column_take(&reader->columns[node->leaf], &ignored);
    }
    for (int32_t i = 0; i < node->num_children; i++) TRY(skip_absent(reader, node->children[i]));
    return OK;
}

static Status check_length(const ParquetReader *reader, const StrBuf *out)
{
    FAIL_IF(out->len > RECORD_MAX_BYTES, ERR_INVALID, "%s: a row of more than %d MiB", reader->path, RECORD_MAX_BYTES >> 20);
    return OK;
}

static void push_entry(ParquetReader *reader, MapEntry entry)
{
    reader->entries = array_room(reader->entries, reader->num_entries + 1, &reader->entry_capacity, sizeof *reader->entries);
    reader->entries[reader->num_entries++] = entry;
}

static int compare_keys(const MapEntry *a, const MapEntry *b, const char *text)
{
    size_t a_len = a->key_end - a->begin, b_len = b->key_end - b->begin;
    if (a_len != b_len) return a_len < b_len ? -1 : 1;
    return memcmp(text + a->begin, text + b->begin, a_len);
}

static int by_key(const void *a, const void *b, void *text)
{
    const MapEntry *left = a, *right = b;
    int             order = compare_keys(left, right, text);
    return order ? order : left->begin < right->begin ? -1 : 1;
}

static int by_place(const void *a, const void *b, void *ignored)
{
    const MapEntry *left = a, *right = b;
    (void)ignored;
    return left->begin < right->begin ? -1 : 1;
}

/* If several entries of a map have the same key, only the last one counts (parquet-format, LogicalTypes.md): this takes the earlier ones
 * out of the text. The map's entries are entries[first] and all entries after it. */
static void drop_repeated(ParquetReader *reader, size_t first, StrBuf *out)
{
    size_t count = reader->num_entries - first, num_repeated = 0;
    reader->num_entries = first;
    if (count < 2) return;
    MapEntry *entries = reader->entries + first;
    qsort_r(entries, count, sizeof *entries, by_key, out->data);
    for (size_t i = 0; i + 1 < count; i++) {
        entries[i].is_repeated = compare_keys(&entries[i], &entries[i + 1], out->data) == 0;
        num_repeated += entries[i].is_repeated;
    }
    if (num_repeated == 0) return;
    qsort_r(entries, count, sizeof *entries, by_place, NULL);
    size_t begin = entries[0].begin;
    out->len = begin;
    for (size_t i = 0; i < count; i++) {
        size_t len = entries[i].end - entries[i].begin;
        if (entries[i].is_repeated) continue;
        if (out->len > begin) out->data[out->len++] = ',';
        memmove(out->data + out->len, out->data + entries[i].begin, len);
        out->len += len;
    }
    out->data[out->len] = 0;
}

/* Writes "key": value, an item of a map's repeated node. */
static Status write_entry(ParquetReader *reader, const ParquetNode *entry, StrBuf *out)
{
    size_t at = out->len;
    TRY(write_node(reader, entry->children[0], out));
    if (out->data[at] != '"') {
        StrBuf key = {0};
        strbuf_append(&key, out->data + at, out->len - at);
        out->len = at;
        json_write_string(out, key.data, key.len);
        strbuf_deinit(&key);
    }
    size_t key_end = out->len;
    strbuf_putc(out, ':');
    if (entry->num_children > 1)
        TRY(write_node(reader, entry->children[1], out));
    else
        strbuf_puts(out, "null");
    push_entry(reader, (MapEntry){at, out->len, key_end, false});
    return OK;
}

/* Writes all columns of a row. A struct inside a column leaves out absent fields: all structs of a column share one type, so most of them
 * lack fields that others have. */
static Status write_struct(ParquetReader *reader, const ParquetNode *node, StrBuf *out)
{
    bool is_row = node == reader->meta.root, is_first = true;
    strbuf_putc(out, '{');
    for (int32_t i = 0; i < node->num_children; i++) {
        const ParquetNode *child = node->children[i];
        ColumnReader      *first = &reader->columns[child->leaf];
        if (!is_row && child->repetition == PQ_OPTIONAL) {
            TRY(column_peek(first));
            if (first->def < child->def_level) {
                TRY(skip_absent(reader, child));
                continue;
            }
        }
        if (!is_first) strbuf_putc(out, ',');
        is_first = false;
        json_write_string(out, child->name, child->name_len);
        strbuf_putc(out, ':');
        TRY(write_node(reader, child, out));
    }
    strbuf_putc(out, '}');
    return OK;
}

typedef enum ItemKind { ITEM_SELF, ITEM_CHILD, ITEM_ENTRY } ItemKind;

static Status write_present(ParquetReader *reader, const ParquetNode *node, StrBuf *out);

static Status write_item(ParquetReader *reader, const ParquetNode *repeated, ItemKind kind, StrBuf *out)
{
    if (kind == ITEM_ENTRY) return write_entry(reader, repeated, out);
    if (kind == ITEM_CHILD) return write_node(reader, repeated->children[0], out);
    return write_present(reader, repeated, out);
}

/* Writes all items of a repeated node; the levels of its first leaf tell where they end. */
static Status write_items(ParquetReader *reader, const ParquetNode *repeated, ItemKind kind, StrBuf *out)
{
    ColumnReader *first = &reader->columns[repeated->leaf];
    TRY(column_peek(first));
    if (first->def < repeated->def_level) return skip_absent(reader, repeated);
    for (bool is_first = true;; is_first = false) {
        if (!is_first) strbuf_putc(out, ',');
        TRY(write_item(reader, repeated, kind, out));
        TRY(check_length(reader, out));
        if (column_at_end(first)) return OK;
        TRY(column_peek(first));
        if (first->rep < repeated->rep_level) return OK;
    }
}

/* Tells whether a list's repeated node is the item itself, as in the old two-level form, or wraps the item (parquet-format,
 * LogicalTypes.md). */
static ItemKind list_item_kind(const ParquetNode *repeated)
{
    size_t len = repeated->name_len;
    bool   is_item = repeated->num_children != 1 || strcmp(repeated->name, "array") == 0 ||
                   (len >= 6 && strcmp(repeated->name + len - 6, "_tuple") == 0);
    return is_item ? ITEM_SELF : ITEM_CHILD;
}

/* Writes a node that is present, ignoring its own repetition. */
static Status write_present(ParquetReader *reader, const ParquetNode *node, StrBuf *out)
{
    if (node->num_children == 0) {
        ColumnReader *column = &reader->columns[node->leaf];
        PqValue       value;
        TRY(column_take(column, &value));
        if (column->def < node->def_level)
            strbuf_puts(out, "null");
        else
            parquet_write_value(out, node, value);
        return OK;
    }
    const ParquetNode *child = node->children[0];
    bool               wraps = node->num_children == 1 && child->repetition == PQ_REPEATED;
    bool               is_map = wraps && node->meaning == PQ_MAP && child->num_children > 0;
    bool               is_list = wraps && node->meaning == PQ_LIST;
    if (!is_map && !is_list) return write_struct(reader, node, out);
    size_t first = reader->num_entries;
    strbuf_putc(out, is_map ? '{' : '[');
    TRY(write_items(reader, child, is_map ? ITEM_ENTRY : list_item_kind(child), out));
    if (is_map) drop_repeated(reader, first, out);
    strbuf_putc(out, is_map ? '}' : ']');
    return OK;
}

static Status write_node(ParquetReader *reader, const ParquetNode *node, StrBuf *out)
{
    if (node->repetition == PQ_REPEATED) {
        strbuf_putc(out, '[');
        TRY(write_items(reader, node, ITEM_SELF, out));
        strbuf_putc(out, ']');
        return OK;
    }
    if (node->repetition == PQ_OPTIONAL && node->num_children > 0) {
        ColumnReader *first = &reader->columns[node->leaf];
        TRY(column_peek(first));
        if (first->def < node->def_level) {
            strbuf_puts(out, "null");
            return skip_absent(reader, node);
        }
    }
    return write_present(reader, node, out);
}

static Status next_group(ParquetReader *reader)
{
    while (reader->rows_left == 0 && reader->group + 1 < reader->meta.num_groups) {
        const ParquetGroup *group = &reader->meta.groups[++reader->group];
        reader->rows_left = group->num_rows;
        if (group->num_rows == 0) continue;
        for (int32_t c = 0; c < reader->meta.num_leaves; c++)
            column_begin(&reader->columns[c], reader->path, reader->meta.leaves[c], &group->chunks[c], reader->file);
    }
    return OK;
}

Status parquet_next(ParquetReader *reader, StrBuf *out, bool *out_has)
{
    TRY(next_group(reader));
    *out_has = reader->rows_left > 0;
    if (!*out_has) return OK;
    for (int32_t c = 0; c < reader->meta.num_leaves; c++) {
        TRY(column_peek(&reader->columns[c]));
        FAIL_IF(reader->columns[c].rep != 0, ERR_INVALID, "%s: column %s: damaged levels", reader->path, reader->meta.leaves[c]->name);
    }
    size_t before = out->len;
    TRY(write_struct(reader, reader->meta.root, out));
    TRY(check_length(reader, out));
    reader->rows_left--;
    reader->given_bytes += out->len - before;
    FAIL_IF(reader->given_bytes > EXPAND_FREE_BYTES && reader->given_bytes / EXPAND_MAX_RATIO > reader->size, ERR_INVALID,
            "%s: expands more than %d-fold; refused as a decompression bomb", reader->path, EXPAND_MAX_RATIO);
    return OK;
}

static Status reader_init(ParquetReader *reader)
{
    TRY(parquet_meta_read(&reader->arena, reader->path, reader->file, reader->size, &reader->meta));
    FAIL_IF(reader->meta.num_leaves == 0 && reader->meta.num_rows > 0, ERR_INVALID, "%s: rows without columns", reader->path);
    reader->columns = arena_array(&reader->arena, ColumnReader, reader->meta.num_leaves);
    reader->group = -1;
    return OK;
}

Status parquet_open_bytes(const char *name, const void *data, size_t size, ParquetReader **out_reader)
{
    *out_reader = NULL;
    ParquetReader *reader = calloc_or_end(1, sizeof *reader);
    reader->path = arena_strdup(&reader->arena, name);
    reader->file = data;
    reader->size = size;
    Status status = reader_init(reader);
    if (status != OK)
        parquet_close(reader);
    else
        *out_reader = reader;
    return status;
}

Status parquet_open(const char *path, ParquetReader **out_reader)
{
    FileMap map;
    *out_reader = NULL;
    TRY(file_map(path, &map));
    Status status = parquet_open_bytes(path, map.data, map.size, out_reader);
    if (status != OK)
        file_unmap(&map);
    else
        (*out_reader)->map = map;
    return status;
}

void parquet_close(ParquetReader *reader)
{
    if (!reader) return;
    for (int32_t c = 0; reader->columns && c < reader->meta.num_leaves; c++) column_deinit(&reader->columns[c]);
    if (reader->map.data) file_unmap(&reader->map);
    arena_deinit(&reader->arena);
    free(reader->entries);
    free(reader);
}

int64_t parquet_num_rows(const ParquetReader *reader)
{
    return reader->meta.num_rows;
}
