#include "data/thrift.h"

enum { THRIFT_MAX_DEPTH = 32 };

static uint8_t read_byte(ThriftReader *reader)
{
    if (reader->at == reader->end) reader->failed = true;
    return reader->failed ? 0 : *reader->at++;
}

static uint64_t read_varint(ThriftReader *reader)
{
    uint64_t value = 0;
    for (int shift = 0; shift < 64; shift += 7) {
        uint8_t byte = read_byte(reader);
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) return value;
    }
    reader->failed = true;
    return 0;
}

static int64_t read_zigzag(ThriftReader *reader)
{
    uint64_t value = read_varint(reader);
    return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

bool thrift_field(ThriftReader *reader, ThriftField *field)
{
    uint8_t head = read_byte(reader);
    field->type = (ThriftType)(head & 15);
    if (reader->failed || field->type == THRIFT_STOP) return false;
    int64_t id = head >> 4 ? field->id + (head >> 4) : read_zigzag(reader);
    if (id < -32768 || id > 32767) reader->failed = true;
    field->id = (int)id;
    return !reader->failed;
}

static Str read_binary(ThriftReader *reader)
{
    uint64_t len = read_varint(reader);
    if (reader->failed || len > (uint64_t)(reader->end - reader->at)) {
        reader->failed = true;
        return (Str){"", 0};
    }
    Str out = {(const char *)reader->at, (size_t)len};
    reader->at += len;
    return out;
}

static uint32_t read_list_head(ThriftReader *reader, ThriftType *item)
{
    uint8_t  head = read_byte(reader);
    uint64_t count = head >> 4 == 15 ? read_varint(reader) : head >> 4;
    *item = (ThriftType)(head & 15);
    if (count > (uint64_t)(reader->end - reader->at)) reader->failed = true;
    return reader->failed ? 0 : (uint32_t)count;
}

static void skip_bytes(ThriftReader *reader, size_t count)
{
    if (count > (size_t)(reader->end - reader->at))
        reader->failed = true;
    else
        reader->at += count;
}

static void skip_deep(ThriftReader *reader, ThriftType type, bool in_list, int depth)
{
    if (depth > THRIFT_MAX_DEPTH) reader->failed = true;
    if (reader->failed) return;
    switch (type) {
    case THRIFT_TRUE:
    case THRIFT_FALSE:
        if (in_list) skip_bytes(reader, 1);
        return;
    case THRIFT_BYTE:
        skip_bytes(reader, 1);
        return;
    case THRIFT_I16:
    case THRIFT_I32:
    case THRIFT_I64:
        read_varint(reader);
        return;
    case THRIFT_DOUBLE:
        skip_bytes(reader, 8);
        return;
    case THRIFT_BINARY:
        read_binary(reader);
        return;
    case THRIFT_LIST:
    case THRIFT_SET: {
        ThriftType item;
        uint32_t   count = read_list_head(reader, &item);
        for (uint32_t i = 0; i < count && !reader->failed; i++) skip_deep(reader, item, true, depth + 1);
        return;
    }
    case THRIFT_MAP: {
        uint64_t count = read_varint(reader);
        if (count > (uint64_t)(reader->end - reader->at)) reader->failed = true;
        uint8_t types = count && !reader->failed ? read_byte(reader) : 0;
        for (uint64_t i = 0; i < count && !reader->failed; i++) {
            skip_deep(reader, (ThriftType)(types >> 4), true, depth + 1);
            skip_deep(reader, (ThriftType)(types & 15), true, depth + 1);
        }
        return;
    }
    case THRIFT_STRUCT:
        for (ThriftField field = {0}; thrift_field(reader, &field);) skip_deep(reader, field.type, false, depth + 1);
        return;
    default:
        reader->failed = true;
    }
}

void thrift_skip(ThriftReader *reader, ThriftType type)
{
    skip_deep(reader, type, false, 0);
}

int64_t thrift_int(ThriftReader *reader, const ThriftField *field, int64_t fallback)
{
    if (field->type == THRIFT_BYTE) return (int8_t)read_byte(reader);
    if (field->type == THRIFT_I16 || field->type == THRIFT_I32 || field->type == THRIFT_I64) return read_zigzag(reader);
    thrift_skip(reader, field->type);
    return fallback;
}

bool thrift_bool(ThriftReader *reader, const ThriftField *field)
{
    if (field->type != THRIFT_TRUE && field->type != THRIFT_FALSE) thrift_skip(reader, field->type);
    return field->type == THRIFT_TRUE;
}

Str thrift_binary(ThriftReader *reader, const ThriftField *field)
{
    if (field->type == THRIFT_BINARY) return read_binary(reader);
    thrift_skip(reader, field->type);
    return (Str){"", 0};
}

uint32_t thrift_list(ThriftReader *reader, const ThriftField *field, ThriftType item)
{
    ThriftReader before = *reader;
    ThriftType   found;
    if (field->type == THRIFT_LIST) {
        uint32_t count = read_list_head(reader, &found);
        if (count == 0 || found == item) return count;
        *reader = before;
    }
    thrift_skip(reader, field->type);
    return 0;
}
