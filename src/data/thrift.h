/* A reader of Thrift's compact protocol, as parquet's metadata is written. Every read is checked against the end; after the
 * first error `failed` stays set and reads give zeros, so that callers check once. */
#pragma once

#include "base/strbuf.h"

#include <stdint.h>

typedef enum ThriftType {
    THRIFT_STOP,
    THRIFT_TRUE,
    THRIFT_FALSE,
    THRIFT_BYTE,
    THRIFT_I16,
    THRIFT_I32,
    THRIFT_I64,
    THRIFT_DOUBLE,
    THRIFT_BINARY,
    THRIFT_LIST,
    THRIFT_SET,
    THRIFT_MAP,
    THRIFT_STRUCT
} ThriftType;

typedef struct ThriftReader {
    const uint8_t *at, *end;
    bool           failed;
} ThriftReader;

typedef struct ThriftField {
    int        id;
    ThriftType type;
} ThriftField;

/* The next field of a struct; false at its end (or on failure). *field is zeroed before the first call; later calls need it unchanged. */
bool thrift_field(ThriftReader *reader, ThriftField *field);

/* The value of a field just read; a value of another type is skipped and gives the fallback. */
int64_t thrift_int(ThriftReader *reader, const ThriftField *field, int64_t fallback);
bool    thrift_bool(ThriftReader *reader, const ThriftField *field);
Str     thrift_binary(ThriftReader *reader, const ThriftField *field); /* points into the input */

/* Starts a list and returns its length, at most the bytes left. 0 if the field is no list of `item`; the field is then skipped. Items are
 * structs, read with thrift_field. */
uint32_t thrift_list(ThriftReader *reader, const ThriftField *field, ThriftType item);

void thrift_skip(ThriftReader *reader, ThriftType type);
