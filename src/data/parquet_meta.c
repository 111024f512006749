/* The footer is Thrift: FileMetaData at the end of the file, found through its length before the closing magic. Counts are
 * bounded by the footer's own bytes; offsets into the file are checked before use. */
#include "data/parquet_meta.h"

#include "data/thrift.h"

#include <string.h>

enum { PQ_MAX_DEPTH = 32, PQ_FOOTER_BYTES = 8 };

typedef struct MetaReader {
    ThriftReader thrift;
    Arena       *arena;
    const char  *path;
    ParquetNode *flat; /* schema elements, depth first */
    uint32_t     num_flat;
} MetaReader;

static int32_t clamp32(int64_t value)
{
    return value < INT32_MIN || value > INT32_MAX ? -1 : (int32_t)value;
}

/* TimeUnit: a union whose field number is the unit. */
static int32_t read_time_unit(ThriftReader *thrift, const ThriftField *of)
{
    int32_t unit = 3;
    if (of->type != THRIFT_STRUCT) {
        thrift_skip(thrift, of->type);
        return unit;
    }
    for (ThriftField field = {0}; thrift_field(thrift, &field);) {
        unit = field.id == 2 ? 6 : field.id == 3 ? 9 : 3;
        thrift_skip(thrift, field.type);
    }
    return unit;
}

/* Reads the members of one kind of LogicalType. The kind decides which members are stored in the node. */
static void read_logical_kind(ThriftReader *thrift, ParquetNode *node, int kind)
{
    bool is_signed = true;
    for (ThriftField field = {0}; thrift_field(thrift, &field);) {
        if (kind == 5 && field.id == 1)
            node->scale = clamp32(thrift_int(thrift, &field, 0));
        else if ((kind == 7 || kind == 8) && field.id == 2)
            node->unit = read_time_unit(thrift, &field);
        else if (kind == 10 && field.id == 2)
            is_signed = thrift_bool(thrift, &field);
        else
            thrift_skip(thrift, field.type);
    }
    if (kind == 10 && !is_signed) node->meaning = PQ_UNSIGNED;
}

static void read_logical(ThriftReader *thrift, ParquetNode *node)
{
    static const ParquetMeaning meanings[16] = {
        [1] = PQ_STRING, [2] = PQ_MAP,       [3] = PQ_LIST,    [4] = PQ_STRING, [5] = PQ_DECIMAL,  [6] = PQ_DATE,
        [7] = PQ_TIME,   [8] = PQ_TIMESTAMP, [12] = PQ_STRING, [14] = PQ_UUID,  [15] = PQ_FLOAT16,
    };
    for (ThriftField field = {0}; thrift_field(thrift, &field);) {
        if (field.id >= 1 && field.id <= 15) node->meaning = meanings[field.id];
        if (field.type == THRIFT_STRUCT)
            read_logical_kind(thrift, node, field.id);
        else
            thrift_skip(thrift, field.type);
    }
}

/* Sets the meaning that a ConvertedType stands for; LogicalType is its newer form. */
static void set_converted(ParquetNode *node, int64_t converted)
{
    static const ParquetMeaning meanings[] = {
        PQ_STRING,    PQ_MAP,      PQ_MAP,      PQ_LIST,     PQ_STRING,   PQ_DECIMAL, PQ_DATE,  PQ_TIME,  PQ_TIME,  PQ_TIMESTAMP,
        PQ_TIMESTAMP, PQ_UNSIGNED, PQ_UNSIGNED, PQ_UNSIGNED, PQ_UNSIGNED, PQ_PLAIN,   PQ_PLAIN, PQ_PLAIN, PQ_PLAIN, PQ_STRING,
    };
    if (converted < 0 || converted >= (int64_t)(sizeof meanings / sizeof meanings[0])) return;
    node->meaning = meanings[converted];
    if (node->meaning == PQ_TIME || node->meaning == PQ_TIMESTAMP) node->unit = converted == 7 || converted == 9 ? 3 : 6;
}

static void read_schema_element(MetaReader *reader, ParquetNode *node)
{
    ThriftReader *thrift = &reader->thrift;
    bool          has_logical = false;
    node->type = -1;
    for (ThriftField field = {0}; thrift_field(thrift, &field);) {
        switch (field.id) {
        case 1:
            node->type = clamp32(thrift_int(thrift, &field, -1));
            break;
        case 2:
            node->type_bytes = clamp32(thrift_int(thrift, &field, 0));
            break;
        case 3: {
            int64_t repetition = thrift_int(thrift, &field, 0);
            if (repetition < 0 || repetition > 2) thrift->failed = true;
            node->repetition = (ParquetRepetition)repetition;
            break;
        }
        case 4: {
            Str name = thrift_binary(thrift, &field);
            node->name = arena_strndup(reader->arena, name.data, name.len);
            node->name_len = name.len;
            break;
        }
        case 5:
            node->num_children = clamp32(thrift_int(thrift, &field, 0));
            break;
        case 6: {
            int64_t converted = thrift_int(thrift, &field, -1);
            if (!has_logical) set_converted(node, converted);
            break;
        }
        case 7:
            node->scale = clamp32(thrift_int(thrift, &field, 0));
            break;
        case 10:
            has_logical = field.type == THRIFT_STRUCT;
            if (has_logical) {
                node->meaning = PQ_PLAIN;
                read_logical(thrift, node);
            } else {
                thrift_skip(thrift, field.type);
            }
            break;
        default:
            thrift_skip(thrift, field.type);
        }
    }
    if (!node->name) node->name = arena_strdup(reader->arena, "");
}

static void read_schema(MetaReader *reader, const ThriftField *field)
{
    reader->num_flat = thrift_list(&reader->thrift, field, THRIFT_STRUCT);
    reader->flat = arena_array(reader->arena, ParquetNode, reader->num_flat);
    for (uint32_t i = 0; i < reader->num_flat; i++) read_schema_element(reader, &reader->flat[i]);
}

static void read_chunk_meta(ThriftReader *thrift, ParquetChunk *chunk)
{
    int64_t data_page = 0, dictionary_page = 0;
    for (ThriftField field = {0}; thrift_field(thrift, &field);) {
        switch (field.id) {
        case 4:
            chunk->codec = clamp32(thrift_int(thrift, &field, 0));
            break;
        case 5:
            chunk->num_values = thrift_int(thrift, &field, 0);
            break;
        case 7:
            chunk->size = thrift_int(thrift, &field, 0);
            break;
        case 9:
            data_page = thrift_int(thrift, &field, 0);
            break;
        case 11:
            dictionary_page = thrift_int(thrift, &field, 0);
            break;
        default:
            thrift_skip(thrift, field.type);
        }
    }
    /* Without a dictionary, some writers store dictionary_page 0, others store an offset after the data. */
    chunk->begin = dictionary_page > 0 && dictionary_page < data_page ? dictionary_page : data_page;
}

static void read_chunk(ThriftReader *thrift, ParquetChunk *chunk)
{
    for (ThriftField field = {0}; thrift_field(thrift, &field);) {
        if (field.id == 3 && field.type == THRIFT_STRUCT) {
            read_chunk_meta(thrift, chunk);
        } else {
            chunk->is_elsewhere |= field.id == 1;
            chunk->has_crypto |= field.id == 8 || field.id == 9;
            thrift_skip(thrift, field.type);
        }
    }
}

static void read_group(MetaReader *reader, ParquetGroup *group, int32_t *num_chunks)
{
    ThriftReader *thrift = &reader->thrift;
    *num_chunks = 0;
    for (ThriftField field = {0}; thrift_field(thrift, &field);) {
        if (field.id == 1) {
            uint32_t count = thrift_list(thrift, &field, THRIFT_STRUCT);
            group->chunks = arena_array(reader->arena, ParquetChunk, count);
            *num_chunks = (int32_t)count;
            for (uint32_t i = 0; i < count; i++) read_chunk(thrift, &group->chunks[i]);
        } else if (field.id == 3) {
            group->num_rows = thrift_int(thrift, &field, 0);
        } else {
            thrift_skip(thrift, field.type);
        }
    }
}

static Status read_groups(MetaReader *reader, const ThriftField *field, ParquetMeta *out)
{
    uint32_t count = thrift_list(&reader->thrift, field, THRIFT_STRUCT);
    out->groups = arena_array(reader->arena, ParquetGroup, count);
    out->num_groups = (int32_t)count;
    out->num_leaves = -1;
    for (uint32_t i = 0; i < count; i++) {
        int32_t num_chunks;
        read_group(reader, &out->groups[i], &num_chunks);
        if (out->num_leaves < 0) out->num_leaves = num_chunks;
        FAIL_IF(num_chunks != out->num_leaves, ERR_INVALID, "%s: row group %u has %d columns, the first has %d", reader->path, i,
                num_chunks, out->num_leaves);
    }
    return OK;
}

static Status read_file_meta(MetaReader *reader, ParquetMeta *out)
{
    for (ThriftField field = {0}; thrift_field(&reader->thrift, &field);) {
        if (field.id == 2)
            read_schema(reader, &field);
        else if (field.id == 3)
            out->num_rows = thrift_int(&reader->thrift, &field, 0);
        else if (field.id == 4)
            TRY(read_groups(reader, &field, out));
        else
            thrift_skip(&reader->thrift, field.type);
    }
    FAIL_IF(reader->thrift.failed || reader->num_flat == 0, ERR_INVALID, "%s: the parquet footer is damaged", reader->path);
    return OK;
}

/* Builds the tree below flat[*next], and sets levels and leaf numbers. */
static Status link_node(MetaReader *reader, uint32_t *next, int32_t def, int32_t rep, int depth, ParquetMeta *out, int32_t *num_leaves,
                        ParquetNode **out_node)
{
    FAIL_IF(*next >= reader->num_flat || depth > PQ_MAX_DEPTH, ERR_INVALID, "%s: the schema is %s", reader->path,
            depth > PQ_MAX_DEPTH ? "nested too deeply" : "cut off");
    ParquetNode *node = &reader->flat[(*next)++];
    node->def_level = def + (depth > 0 && node->repetition != PQ_REQUIRED);
    node->rep_level = rep + (depth > 0 && node->repetition == PQ_REPEATED);
    node->leaf = *num_leaves;
    *out_node = node;
    if (node->num_children == 0 && depth > 0) {
        FAIL_IF(node->type < PQ_BOOLEAN || node->type > PQ_FIXED || (node->type == PQ_FIXED && node->type_bytes < 1), ERR_INVALID,
                "%s: column %s has no proper type", reader->path, node->name);
        out->leaves[(*num_leaves)++] = node;
        return OK;
    }
    FAIL_IF(node->num_children < 0 || (uint32_t)node->num_children > reader->num_flat - *next, ERR_INVALID,
            "%s: column %s says it has %d children", reader->path, node->name, node->num_children);
    node->children = arena_array(reader->arena, ParquetNode *, node->num_children);
    for (int32_t i = 0; i < node->num_children; i++)
        TRY(link_node(reader, next, node->def_level, node->rep_level, depth + 1, out, num_leaves, &node->children[i]));
    return OK;
}

/* Some writers leave the dictionary page's header out of a column's size (PARQUET-816): so a column may have DICTIONARY_HEADER_BYTES
 * more. */
static void add_slack(ParquetChunk *chunk, size_t size)
{
    enum { DICTIONARY_HEADER_BYTES = 100 };
    int64_t room = (int64_t)size - chunk->begin - chunk->size;
    chunk->size += room < DICTIONARY_HEADER_BYTES ? room : DICTIONARY_HEADER_BYTES;
}

static Status check_groups(const MetaReader *reader, const ParquetMeta *meta, size_t size)
{
    int64_t rows = 0;
    for (int32_t g = 0; g < meta->num_groups; g++) {
        FAIL_IF(meta->groups[g].num_rows < 0 || __builtin_add_overflow(rows, meta->groups[g].num_rows, &rows), ERR_INVALID,
                "%s: row group %d: impossible number of rows", reader->path, g);
        for (int32_t c = 0; c < meta->num_leaves; c++) {
            ParquetChunk *chunk = &meta->groups[g].chunks[c];
            const char   *name = meta->leaves[c]->name;
            FAIL_IF(chunk->has_crypto, ERR_UNSUPPORTED, "%s: column %s is encrypted; parquet encryption is not supported", reader->path,
                    name);
            FAIL_IF(chunk->is_elsewhere, ERR_UNSUPPORTED, "%s: column %s lies in another file", reader->path, name);
            if (meta->groups[g].num_rows == 0) continue; /* without rows there are no pages, and writers store any offsets */
            FAIL_IF(chunk->begin < 4 || chunk->size < 0 || chunk->num_values < 0 || (uint64_t)chunk->begin > size ||
                        (uint64_t)chunk->size > size - (uint64_t)chunk->begin,
                    ERR_INVALID, "%s: column %s of row group %d lies outside the file", reader->path, name, g);
            add_slack(chunk, size);
        }
    }
    FAIL_IF(rows != meta->num_rows, ERR_INVALID, "%s: the row groups hold %lld rows, the footer says %lld", reader->path, (long long)rows,
            (long long)meta->num_rows);
    return OK;
}

Status parquet_meta_read(Arena *arena, const char *path, const uint8_t *file, size_t size, ParquetMeta *out)
{
    *out = (ParquetMeta){0};
    FAIL_IF(size < 4 + PQ_FOOTER_BYTES || memcmp(file, "PAR", 3) != 0, ERR_INVALID, "%s: not a parquet file", path);
    const uint8_t *tail = file + size - PQ_FOOTER_BYTES;
    FAIL_IF(memcmp(tail + 4, "PARE", 4) == 0, ERR_UNSUPPORTED, "%s: an encrypted parquet file, which is not supported", path);
    FAIL_IF(memcmp(tail + 4, "PAR1", 4) != 0, ERR_INVALID, "%s: the end of a parquet file is missing; the file was cut", path);
    uint32_t len = (uint32_t)tail[0] | (uint32_t)tail[1] << 8 | (uint32_t)tail[2] << 16 | (uint32_t)tail[3] << 24;
    FAIL_IF(len > size - 4 - PQ_FOOTER_BYTES, ERR_INVALID, "%s: the parquet footer is longer than the file", path);
    MetaReader reader = {.thrift = {tail - len, tail, false}, .arena = arena, .path = path};
    TRY(read_file_meta(&reader, out));
    uint32_t next = 0;
    int32_t  num_leaves = 0;
    out->leaves = arena_array(arena, ParquetNode *, reader.num_flat);
    TRY(link_node(&reader, &next, 0, 0, 0, out, &num_leaves, &out->root));
    FAIL_IF(next != reader.num_flat || (out->num_groups > 0 && out->num_leaves != num_leaves), ERR_INVALID,
            "%s: %d columns in the schema, %d in the data", path, num_leaves, out->num_leaves);
    out->num_leaves = num_leaves;
    return check_groups(&reader, out, size);
}
