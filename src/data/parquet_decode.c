#include "data/parquet_decode.h"

#include "base/str.h"

#include <string.h>

static bool read_varint(const uint8_t **at, const uint8_t *end, uint64_t *out)
{
    *out = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        if (*at == end) return false;
        uint8_t byte = *(*at)++;
        *out |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return true;
    }
    return false;
}

static uint64_t unzigzag(uint64_t value)
{
    return (value >> 1) ^ -(value & 1);
}

/* Reads `width` (0..64) bits, from bit `bit` of data on, least significant bit first. False: they reach past `end`. */
static bool read_bits(const uint8_t *data, const uint8_t *end, uint64_t bit, int width, uint64_t *out)
{
    *out = 0;
    if (width == 0) return true;
    size_t size = (size_t)(end - data);
    if ((bit + (uint64_t)width - 1) / 8 >= size) return false;
    const uint8_t *at = data + bit / 8;
    int            shift = (int)(bit & 7);
    uint64_t       low = 0;
    if (end - at >= 8) {
        memcpy(&low, at, 8);
    } else {
        for (int i = 0; at + i < end; i++) low |= (uint64_t)at[i] << (8 * i);
    }
    low >>= shift;
    if (shift + width > 64) low |= (uint64_t)at[8] << (64 - shift);
    *out = width == 64 ? low : low & (((uint64_t)1 << width) - 1);
    return true;
}

/* Like read_bits, but most significant bit first, from the highest bit of each byte. */
static bool read_high_bits(const uint8_t *data, const uint8_t *end, uint64_t bit, int width, uint64_t *out)
{
    *out = 0;
    for (int i = 0; i < width; i++, bit++) {
        if (bit / 8 >= (uint64_t)(end - data)) return false;
        *out = *out << 1 | (data[bit / 8] >> (7 - bit % 8) & 1);
    }
    return true;
}

static bool rle_run(RleDecoder *rle)
{
    uint64_t head;
    if (!read_varint(&rle->at, rle->end, &head)) return false;
    rle->is_packed = head & 1;
    rle->left = head >> 1;
    if (rle->is_packed) {
        if (rle->left > UINT32_MAX) return false;
        rle->left *= 8;
        rle->bit = 0;
        return true;
    }
    int bytes = (rle->width + 7) / 8;
    if (rle->end - rle->at < bytes) return false;
    rle->value = 0;
    for (int i = 0; i < bytes; i++) rle->value |= (uint32_t)*rle->at++ << (8 * i);
    return true;
}

bool rle_next(RleDecoder *rle, uint32_t *out)
{
    *out = 0;
    if (rle->width == 0) return true;
    while (rle->left == 0)
        if (!rle_run(rle)) return false;
    rle->left--;
    if (!rle->is_packed) {
        *out = rle->value;
        return true;
    }
    uint64_t value;
    bool     is_read = rle->is_high_first ? read_high_bits(rle->at, rle->end, rle->bit, rle->width, &value)
                                          : read_bits(rle->at, rle->end, rle->bit, rle->width, &value);
    if (!is_read) return false;
    rle->bit += (uint64_t)rle->width;
    *out = (uint32_t)value;
    if (rle->left == 0) { /* the last group may be cut short by the page's end */
        uint64_t bytes = rle->bit / 8, room = (uint64_t)(rle->end - rle->at);
        rle->at += bytes < room ? bytes : room;
    }
    return true;
}

static bool delta_init(DeltaDecoder *delta, const uint8_t *at, const uint8_t *end)
{
    uint64_t block_size, num_minis, first;
    *delta = (DeltaDecoder){.at = at, .end = end};
    if (!read_varint(&delta->at, end, &block_size) || !read_varint(&delta->at, end, &num_minis) ||
        !read_varint(&delta->at, end, &delta->left) || !read_varint(&delta->at, end, &first))
        return false;
    if (num_minis == 0 || block_size > 1 << 24 || num_minis > block_size || block_size % num_minis != 0 || block_size / num_minis % 8 != 0)
        return false;
    delta->num_minis = delta->mini = (uint32_t)num_minis; /* no block is read yet */
    delta->mini_size = (uint32_t)(block_size / num_minis);
    delta->value = unzigzag(first);
    return true;
}

/* Moves to the next miniblock; after the last miniblock of a block, to the next block. */
static bool delta_advance(DeltaDecoder *delta)
{
    if (delta->mini < delta->num_minis) { /* skip the miniblock just read */
        uint64_t bytes = (uint64_t)delta->mini_size / 8 * delta->widths[delta->mini];
        if (bytes > (uint64_t)(delta->end - delta->at)) return false;
        delta->at += bytes;
        delta->mini++;
    }
    if (delta->mini == delta->num_minis) {
        uint64_t min_delta;
        if (!read_varint(&delta->at, delta->end, &min_delta)) return false;
        if ((uint64_t)(delta->end - delta->at) < delta->num_minis) return false;
        delta->min_delta = unzigzag(min_delta);
        delta->widths = delta->at;
        delta->at += delta->num_minis;
        delta->mini = 0;
    }
    delta->mini_left = delta->mini_size;
    delta->bit = 0;
    return delta->widths[delta->mini] <= 64;
}

static bool delta_next(DeltaDecoder *delta, int64_t *out)
{
    if (delta->left == 0) return false;
    *out = (int64_t)delta->value;
    if (--delta->left == 0) return true;
    if (delta->mini_left == 0 && !delta_advance(delta)) return false;
    int      width = delta->widths[delta->mini];
    uint64_t part;
    if (!read_bits(delta->at, delta->end, delta->bit, width, &part)) return false;
    delta->bit += (uint64_t)width;
    delta->mini_left--;
    delta->value += delta->min_delta + part;
    return true;
}

/* Skips all values. *out_after: where the next stream starts. */
static bool delta_skip(DeltaDecoder *delta, const uint8_t **out_after)
{
    DeltaDecoder run = *delta;
    while (run.left > 0) {
        if (run.left == 1) break; /* the last value is known already */
        if (run.mini_left == 0 && !delta_advance(&run)) return false;
        uint64_t take = run.left - 1 < run.mini_left ? run.left - 1 : run.mini_left;
        run.left -= take;
        run.mini_left -= (uint32_t)take;
    }
    *out_after = run.at;
    if (run.mini < run.num_minis) {
        uint64_t bytes = (uint64_t)run.mini_size / 8 * run.widths[run.mini];
        uint64_t room = (uint64_t)(run.end - run.at);
        *out_after += bytes < room ? bytes : room;
    }
    return true;
}

/* Bytes of a fixed-size value. */
static size_t fixed_bytes(const ParquetNode *leaf)
{
    switch (leaf->type) {
    case PQ_INT32:
    case PQ_FLOAT:
        return 4;
    case PQ_INT64:
    case PQ_DOUBLE:
        return 8;
    case PQ_INT96:
        return 12;
    default:
        return (size_t)leaf->type_bytes;
    }
}

static PqValue fixed_value(const ParquetNode *leaf, const uint8_t *at)
{
    PqValue out = {0};
    int32_t word;
    float   number;
    switch (leaf->type) {
    case PQ_INT32:
        memcpy(&word, at, 4);
        out.integer = word;
        return out;
    case PQ_FLOAT:
        memcpy(&number, at, 4);
        out.number = number;
        return out;
    case PQ_INT64:
    case PQ_DOUBLE:
        memcpy(&out, at, 8);
        return out;
    default:
        out.bytes = (Str){(const char *)at, fixed_bytes(leaf)};
        return out;
    }
}

static bool plain_next(ValueDecoder *values, PqValue *out)
{
    size_t room = (size_t)(values->end - values->at);
    if (values->leaf->type == PQ_BOOLEAN) {
        uint64_t bit;
        if (!read_bits(values->at, values->end, values->bit++, 1, &bit)) return false;
        out->integer = (int64_t)bit;
        return true;
    }
    if (values->leaf->type == PQ_BYTES) {
        uint32_t len;
        if (room < 4) return false;
        memcpy(&len, values->at, 4);
        if (len > room - 4) return false;
        out->bytes = (Str){(const char *)values->at + 4, len};
        values->at += 4 + (size_t)len;
        return true;
    }
    size_t bytes = fixed_bytes(values->leaf);
    if (room < bytes) return false;
    *out = fixed_value(values->leaf, values->at);
    values->at += bytes;
    return true;
}

static bool take_bytes(ValueDecoder *values, int64_t len, Str *out)
{
    if (len < 0 || len > values->end - values->at) return false;
    *out = (Str){(const char *)values->at, (size_t)len};
    values->at += len;
    return true;
}

static bool delta_bytes_next(ValueDecoder *values, PqValue *out)
{
    int64_t prefix, suffix;
    Str     tail;
    if (!delta_next(&values->prefix, &prefix) || !delta_next(&values->delta, &suffix)) return false;
    if (prefix < 0 || (uint64_t)prefix > values->buffer.len || !take_bytes(values, suffix, &tail)) return false;
    values->buffer.len = (size_t)prefix;
    strbuf_append(&values->buffer, tail.data, tail.len);
    out->bytes = strbuf_str(&values->buffer);
    return values->leaf->type != PQ_FIXED || out->bytes.len == fixed_bytes(values->leaf);
}

static bool split_next(ValueDecoder *values, PqValue *out)
{
    size_t bytes = fixed_bytes(values->leaf);
    if (values->split_index == values->split_count) return false;
    values->buffer.len = 0;
    strbuf_reserve(&values->buffer, bytes);
    const uint8_t *from = values->at + values->split_index++;
    for (size_t i = 0; i < bytes; i++) values->buffer.data[i] = (char)from[i * values->split_count];
    *out = fixed_value(values->leaf, (const uint8_t *)values->buffer.data);
    return true;
}

static bool integer_of_type(const ParquetNode *leaf, int64_t value, PqValue *out)
{
    out->integer = leaf->type == PQ_INT32 ? (int32_t)value : value;
    return true;
}

bool values_next(ValueDecoder *values, PqValue *out)
{
    uint32_t index;
    int64_t  integer;
    switch (values->encoding) {
    case PQ_ENC_PLAIN:
        return plain_next(values, out);
    case PQ_ENC_DICTIONARY:
        if (!rle_next(&values->rle, &index) || index >= values->dictionary_len) return false;
        *out = values->dictionary[index];
        return true;
    case PQ_ENC_RLE:
        if (!rle_next(&values->rle, &index)) return false;
        out->integer = index;
        return true;
    case PQ_ENC_DELTA:
        return delta_next(&values->delta, &integer) && integer_of_type(values->leaf, integer, out);
    case PQ_ENC_DELTA_LENGTH:
        return delta_next(&values->delta, &integer) && take_bytes(values, integer, &out->bytes);
    case PQ_ENC_DELTA_BYTES:
        return delta_bytes_next(values, out);
    default:
        return split_next(values, out);
    }
}

static Status rle_values_init(ValueDecoder *values, bool is_dictionary)
{
    const uint8_t *at = values->at;
    if (is_dictionary) {
        /* one byte of bit width; a page with only nulls may lack it */
        int width = at < values->end ? *at : 0;
        FAIL_IF(width > 32, ERR_INVALID, "dictionary indices of %d bits", width);
        values->rle = (RleDecoder){.at = at + (at < values->end), .end = values->end, .width = width};
        return OK;
    }
    uint32_t len;
    values->rle = (RleDecoder){.at = at, .end = at, .width = 1};
    if (at == values->end) return OK; /* the page has only nulls */
    FAIL_IF(values->end - at < 4, ERR_INVALID, "the page is too short");
    memcpy(&len, at, 4);
    FAIL_IF(len > (size_t)(values->end - at) - 4, ERR_INVALID, "the page is too short");
    values->rle = (RleDecoder){.at = at + 4, .end = at + 4 + len, .width = 1};
    return OK;
}

static Status delta_values_init(ValueDecoder *values)
{
    bool is_ok = true;
    values->delta = values->prefix = (DeltaDecoder){0};
    if (values->at == values->end) return OK; /* the page has only nulls */
    if (values->encoding == PQ_ENC_DELTA_BYTES) {
        is_ok = delta_init(&values->prefix, values->at, values->end) && delta_skip(&values->prefix, &values->at);
        values->buffer.len = 0;
    }
    is_ok = is_ok && delta_init(&values->delta, values->at, values->end);
    if (is_ok && values->encoding != PQ_ENC_DELTA) is_ok = delta_skip(&values->delta, &values->at);
    FAIL_IF(!is_ok, ERR_INVALID, "a damaged delta encoding");
    return OK;
}

Status values_init(ValueDecoder *values, const ParquetNode *leaf, int encoding, const uint8_t *at, const uint8_t *end)
{
    bool is_bytes = leaf->type == PQ_BYTES || leaf->type == PQ_FIXED;
    bool is_integer = leaf->type == PQ_INT32 || leaf->type == PQ_INT64;
    values->leaf = leaf;
    values->encoding = encoding == PQ_ENC_PLAIN_DICTIONARY ? PQ_ENC_DICTIONARY : encoding;
    values->at = at;
    values->end = end;
    values->bit = 0;
    bool is_allowed = true;
    switch (values->encoding) {
    case PQ_ENC_PLAIN:
        return OK;
    case PQ_ENC_DICTIONARY:
        return rle_values_init(values, true); /* a page with only nulls needs no dictionary */
    case PQ_ENC_RLE:
        if (leaf->type == PQ_BOOLEAN) return rle_values_init(values, false);
        is_allowed = false;
        break;
    case PQ_ENC_DELTA:
        is_allowed = is_integer;
        break;
    case PQ_ENC_DELTA_LENGTH:
        is_allowed = leaf->type == PQ_BYTES;
        break;
    case PQ_ENC_DELTA_BYTES:
        is_allowed = is_bytes;
        break;
    case PQ_ENC_SPLIT:
        is_allowed = leaf->type != PQ_BOOLEAN && leaf->type != PQ_BYTES && leaf->type != PQ_INT96;
        if (!is_allowed) break;
        values->split_count = (uint64_t)(end - at) / fixed_bytes(leaf);
        values->split_index = 0;
        return OK;
    default:
        FAIL(ERR_UNSUPPORTED, "encoding %d is not supported", encoding);
    }
    FAIL_IF(!is_allowed, ERR_INVALID, "encoding %d can't hold values of type %d", encoding, (int)leaf->type);
    return delta_values_init(values);
}
