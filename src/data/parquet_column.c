#include "data/parquet_column.h"

#include "data/thrift.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE_DATA = 0, PAGE_INDEX = 1, PAGE_DICTIONARY = 2, PAGE_DATA_V2 = 3, PAGE_MAX_BYTES = 256 << 20 };

typedef struct PageHeader {
    int64_t type, uncompressed, compressed, num_values, encoding, def_encoding, rep_encoding;
    int64_t def_bytes, rep_bytes; /* version 2: bytes of the page's levels */
    bool    is_compressed;
} PageHeader;

static void read_kind_header(ThriftReader *thrift, PageHeader *header, int kind)
{
    for (ThriftField field = {0}; thrift_field(thrift, &field);) {
        if (kind == 8 && field.id == 7) {
            header->is_compressed = thrift_bool(thrift, &field);
            continue;
        }
        int64_t value = thrift_int(thrift, &field, 0);
        if (field.id == 1) header->num_values = value;
        if (field.id == (kind == 8 ? 4 : 2)) header->encoding = value;
        if (kind == 5 && field.id == 3) header->def_encoding = value;
        if (kind == 5 && field.id == 4) header->rep_encoding = value;
        if (kind == 8 && field.id == 5) header->def_bytes = value;
        if (kind == 8 && field.id == 6) header->rep_bytes = value;
    }
}

static bool read_page_header(ThriftReader *thrift, PageHeader *header)
{
    *header = (PageHeader){.is_compressed = true, .type = -1};
    for (ThriftField field = {0}; thrift_field(thrift, &field);) {
        if ((field.id == 5 || field.id == 7 || field.id == 8) && field.type == THRIFT_STRUCT) {
            read_kind_header(thrift, header, field.id);
            continue;
        }
        int64_t value = thrift_int(thrift, &field, 0);
        if (field.id == 1) header->type = value;
        if (field.id == 2) header->uncompressed = value;
        if (field.id == 3) header->compressed = value;
    }
    return !thrift->failed && header->uncompressed >= 0 && header->compressed >= 0 && header->num_values >= 0;
}

static uint8_t *ensure(uint8_t **buffer, size_t *capacity, size_t need)
{
    if (need > *capacity) {
        free(*buffer);
        *buffer = malloc_or_end(need);
        *capacity = need;
    }
    return *buffer;
}

static Status load_dictionary(ColumnReader *column, const PageHeader *header, const uint8_t *data)
{
    size_t   size = (size_t)header->uncompressed;
    uint8_t *page = ensure(&column->dictionary_page, &column->dictionary_capacity, size + 1);
    TRY(codec_decompress(column->codec, data, (size_t)header->compressed, page, size));
    /* A value takes at least a byte, and a boolean a bit, so the page's size bounds the count. */
    FAIL_IF((uint64_t)header->num_values > (column->leaf->type == PQ_BOOLEAN ? 8 * size : size), ERR_INVALID, "a damaged dictionary");
    free(column->dictionary);
    column->dictionary = calloc_or_end((size_t)header->num_values + 1, sizeof *column->dictionary);
    column->values.dictionary = column->dictionary;
    column->values.dictionary_len = (uint32_t)header->num_values;
    TRY(values_init(&column->values, column->leaf, PQ_ENC_PLAIN, page, page + size));
    for (int64_t i = 0; i < header->num_values; i++)
        FAIL_IF(!values_next(&column->values, &column->dictionary[i]), ERR_INVALID, "the dictionary ends too early");
    return OK;
}

static int level_width(int32_t most)
{
    return most == 0 ? 0 : 32 - __builtin_clz((unsigned)most);
}

/* The levels of old files (BIT_PACKED): bit-packed without runs, one level for each of the page's values. */
static Status packed_levels(RleDecoder *rle, int64_t num_values, const uint8_t **at, const uint8_t *end)
{
    uint64_t bits = 8 * (uint64_t)(end - *at), width = (uint64_t)rle->width;
    FAIL_IF((uint64_t)num_values > bits / width, ERR_INVALID, "the page is too short for its levels");
    uint64_t bytes = ((uint64_t)num_values * width + 7) / 8;
    rle->at = *at;
    rle->end = *at += bytes;
    rle->is_packed = rle->is_high_first = true;
    rle->left = (uint64_t)num_values;
    return OK;
}

/* Version 1 levels: a length in 4 bytes, then RLE. */
static Status levels_v1(RleDecoder *rle, int32_t most, int64_t encoding, int64_t num_values, const uint8_t **at, const uint8_t *end)
{
    *rle = (RleDecoder){.width = level_width(most)};
    if (most == 0) return OK;
    if (encoding == PQ_ENC_BIT_PACKED) return packed_levels(rle, num_values, at, end);
    FAIL_IF(encoding != PQ_ENC_RLE, ERR_UNSUPPORTED, "level encoding %lld is not supported", (long long)encoding);
    uint32_t len;
    FAIL_IF(end - *at < 4, ERR_INVALID, "the page is too short for its levels");
    memcpy(&len, *at, 4);
    FAIL_IF(len > (size_t)(end - *at) - 4, ERR_INVALID, "the page is too short for its levels");
    rle->at = *at + 4;
    rle->end = rle->at + len;
    *at = rle->end;
    return OK;
}

static Status load_page_v1(ColumnReader *column, const PageHeader *header, const uint8_t *data)
{
    size_t         size = (size_t)header->uncompressed;
    const uint8_t *at = data;
    if (column->codec != CODEC_NONE || size != (size_t)header->compressed) {
        uint8_t *page = ensure(&column->page, &column->page_capacity, size + 1);
        TRY(codec_decompress(column->codec, data, (size_t)header->compressed, page, size));
        at = page;
    }
    const uint8_t *end = at + size;
    TRY(levels_v1(&column->reps, column->leaf->rep_level, header->rep_encoding, header->num_values, &at, end));
    TRY(levels_v1(&column->defs, column->leaf->def_level, header->def_encoding, header->num_values, &at, end));
    return values_init(&column->values, column->leaf, (int)header->encoding, at, end);
}

/* Version 2: levels are before the values, uncompressed; their lengths are in the page header. */
static Status load_page_v2(ColumnReader *column, const PageHeader *header, const uint8_t *data)
{
    int64_t reps = header->rep_bytes, defs = header->def_bytes;
    FAIL_IF(reps < 0 || defs < 0 || reps > header->compressed || defs > header->compressed - reps || reps + defs > header->uncompressed,
            ERR_INVALID, "the page is too short for its levels");
    column->reps = (RleDecoder){.at = data, .end = data + reps, .width = level_width(column->leaf->rep_level)};
    data += reps;
    column->defs = (RleDecoder){.at = data, .end = data + defs, .width = level_width(column->leaf->def_level)};
    data += defs;
    size_t packed = (size_t)(header->compressed - reps - defs), size = (size_t)(header->uncompressed - reps - defs);
    if (column->codec == CODEC_NONE || !header->is_compressed || packed == 0)
        return values_init(&column->values, column->leaf, (int)header->encoding, data, data + packed);
    uint8_t *page = ensure(&column->page, &column->page_capacity, size + 1);
    TRY(codec_decompress(column->codec, data, packed, page, size));
    return values_init(&column->values, column->leaf, (int)header->encoding, page, page + size);
}

static Status load_page(ColumnReader *column)
{
    PageHeader   header;
    ThriftReader thrift = {column->at, column->end, false};
    FAIL_IF(column->at >= column->end, ERR_INVALID, "the pages end %lld values too early", (long long)column->values_left);
    FAIL_IF(!read_page_header(&thrift, &header), ERR_INVALID, "a damaged page header");
    FAIL_IF(header.uncompressed > PAGE_MAX_BYTES, ERR_INVALID, "a page of %lld bytes, more than %d MiB", (long long)header.uncompressed,
            PAGE_MAX_BYTES >> 20);
    FAIL_IF(header.compressed > thrift.end - thrift.at, ERR_INVALID, "a page runs over the end of its column");
    column->at = thrift.at + header.compressed;
    if (header.type == PAGE_DICTIONARY) return load_dictionary(column, &header, thrift.at);
    if (header.type == PAGE_INDEX) return OK;
    FAIL_IF(header.type != PAGE_DATA && header.type != PAGE_DATA_V2, ERR_UNSUPPORTED, "a page of unknown type %lld",
            (long long)header.type);
    FAIL_IF(header.num_values > column->values_left, ERR_INVALID, "more values than the footer says");
    column->page_left = header.num_values;
    return header.type == PAGE_DATA ? load_page_v1(column, &header, thrift.at) : load_page_v2(column, &header, thrift.at);
}

static Status peek(ColumnReader *column)
{
    FAIL_IF(column->values_left == 0, ERR_INVALID, "the column has too few values");
    while (column->page_left == 0) TRY(load_page(column));
    uint32_t rep, def;
    FAIL_IF(!rle_next(&column->reps, &rep) || !rle_next(&column->defs, &def) || rep > (uint32_t)column->leaf->rep_level ||
                def > (uint32_t)column->leaf->def_level,
            ERR_INVALID, "damaged levels");
    column->rep = (int32_t)rep;
    column->def = (int32_t)def;
    column->has_levels = true;
    return OK;
}

static Status placed(const ColumnReader *column, Status status)
{
    return status == OK ? OK : status_prefix(status, "%s: column %s", column->path, column->leaf->name);
}

Status column_peek(ColumnReader *column)
{
    return column->has_levels ? OK : placed(column, peek(column));
}

Status column_take(ColumnReader *column, PqValue *out)
{
    TRY(column_peek(column));
    column->has_levels = false;
    column->page_left--;
    column->values_left--;
    if (column->def < column->leaf->def_level || values_next(&column->values, out)) return OK;
    return placed(column, status_fail(ERR_INVALID, "damaged values"));
}

void column_begin(ColumnReader *column, const char *path, const ParquetNode *leaf, const ParquetChunk *chunk, const uint8_t *file)
{
    column->path = path;
    column->leaf = leaf;
    column->at = file + chunk->begin;
    column->end = column->at + chunk->size;
    column->codec = (Codec)chunk->codec;
    column->values_left = chunk->num_values;
    column->page_left = 0;
    column->has_levels = false;
    column->values.dictionary = NULL;
    column->values.dictionary_len = 0;
}

void column_deinit(ColumnReader *column)
{
    free(column->page);
    free(column->dictionary_page);
    free(column->dictionary);
    strbuf_deinit(&column->values.buffer);
}
