#include "data/parquet_value.h"

#include "base/json.h"

#include <math.h>
#include <string.h>

static int64_t floor_div(int64_t a, int64_t b)
{
    return a / b - (a % b < 0);
}

static int64_t floor_mod(int64_t a, int64_t b)
{
    return a % b + (a % b < 0 ? b : 0);
}

/* Proleptic Gregorian date of a day counted from 1970-01-01 (Howard Hinnant, "chrono-compatible low-level date
 * algorithms": eras of 400 years that start in March). */
static void write_date(StrBuf *out, int64_t day)
{
    int64_t shifted = day + 719468, era = floor_div(shifted, 146097), of_era = shifted - era * 146097;
    int64_t year_of_era = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    int64_t day_of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    int64_t month = (5 * day_of_year + 2) / 153;
    int64_t day_of_month = day_of_year - (153 * month + 2) / 5 + 1;
    month += month < 10 ? 3 : -9;
    strbuf_printf(out, "%04lld-%02lld-%02lld", (long long)(year_of_era + era * 400 + (month <= 2)), (long long)month,
                  (long long)day_of_month);
}

/* nanos: nanoseconds since midnight. Writes 3, 6 or 9 digits after the second, as needed. */
static void write_time(StrBuf *out, int64_t nanos)
{
    int64_t second = nanos / 1000000000, rest = nanos % 1000000000;
    strbuf_printf(out, "%02lld:%02lld:%02lld.", (long long)(second / 3600), (long long)(second / 60 % 60), (long long)(second % 60));
    if (rest % 1000000 == 0)
        strbuf_printf(out, "%03lld", (long long)(rest / 1000000));
    else if (rest % 1000 == 0)
        strbuf_printf(out, "%06lld", (long long)(rest / 1000));
    else
        strbuf_printf(out, "%09lld", (long long)rest);
}

static int64_t units_a_second(int32_t unit)
{
    return unit == 9 ? 1000000000 : unit == 6 ? 1000000 : 1000;
}

static void write_timestamp(StrBuf *out, int64_t value, int32_t unit)
{
    int64_t a_day = 86400 * units_a_second(unit), day = floor_div(value, a_day);
    strbuf_putc(out, '"');
    write_date(out, day);
    strbuf_putc(out, 'T');
    write_time(out, floor_mod(value, a_day) * (1000000000 / units_a_second(unit)));
    strbuf_puts(out, "Z\"");
}

/* Writes an INT96 timestamp: 8 bytes of nanoseconds of the day, then 4 bytes of the Julian day. */
static void write_int96(StrBuf *out, const char *bytes)
{
    int64_t  nanos;
    uint32_t day;
    memcpy(&nanos, bytes, 8);
    memcpy(&day, bytes + 8, 4);
    int64_t over = floor_div(nanos, 86400000000000);
    strbuf_putc(out, '"');
    write_date(out, (int64_t)day - 2440588 + over);
    strbuf_putc(out, 'T');
    write_time(out, floor_mod(nanos, 86400000000000));
    strbuf_puts(out, "Z\"");
}

enum { DECIMAL_BYTES = 32, DECIMAL_DIGITS = 78 };

/* Divides a number, its highest byte first, by 10; returns the remainder. */
static int divide_by_10(unsigned char number[DECIMAL_BYTES])
{
    int rest = 0;
    for (int i = 0; i < DECIMAL_BYTES; i++) {
        rest = rest << 8 | number[i];
        number[i] = (unsigned char)(rest / 10);
        rest %= 10;
    }
    return rest;
}

/* `bytes`, at most DECIMAL_BYTES, are an integer in two's complement, its highest byte first. */
static void write_decimal(StrBuf *out, Str bytes, int32_t scale)
{
    static const unsigned char zero[DECIMAL_BYTES];
    unsigned char              number[DECIMAL_BYTES];
    char                       digits[DECIMAL_DIGITS + 1];
    int                        len = 0, carry = 1;
    bool                       is_negative = bytes.data[0] & 0x80;
    memset(number, is_negative ? 0xFF : 0, sizeof number);
    memcpy(number + DECIMAL_BYTES - bytes.len, bytes.data, bytes.len);
    for (int i = DECIMAL_BYTES - 1; is_negative && i >= 0; i--) {
        carry += (unsigned char)~number[i];
        number[i] = (unsigned char)carry;
        carry >>= 8;
    }
    if (scale < 0 || scale >= DECIMAL_DIGITS) scale = 0;
    while (memcmp(number, zero, sizeof zero) != 0 || len <= scale) digits[len++] = (char)('0' + divide_by_10(number));
    if (is_negative) strbuf_putc(out, '-');
    while (len > 0) {
        if (len == scale) strbuf_putc(out, '.');
        strbuf_putc(out, digits[--len]);
    }
}

static double half_value(const char *bytes)
{
    uint16_t half;
    memcpy(&half, bytes, 2);
    int    exponent = half >> 10 & 31, fraction = half & 1023;
    double out = exponent == 0    ? ldexp(fraction, -24)
                 : exponent == 31 ? (fraction ? NAN : INFINITY)
                                  : ldexp(1024 + fraction, exponent - 25);
    return half & 0x8000 ? -out : out;
}

static void write_number(StrBuf *out, double value)
{
    if (value == rint(value) && fabs(value) < 1e15)
        strbuf_printf(out, "%lld", (long long)value);
    else if (isfinite(value))
        json_write_double(out, value);
    else
        strbuf_puts(out, isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity"); /* spelled as json_parse_row reads them */
}

static void write_uuid(StrBuf *out, const char *bytes)
{
    strbuf_putc(out, '"');
    for (int i = 0; i < 16; i++) strbuf_printf(out, i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", (unsigned char)bytes[i]);
    strbuf_putc(out, '"');
}

static void write_bytes(StrBuf *out, const ParquetNode *leaf, Str bytes)
{
    if (leaf->meaning == PQ_DECIMAL && bytes.len >= 1 && bytes.len <= DECIMAL_BYTES) {
        write_decimal(out, bytes, leaf->scale);
    } else if (leaf->meaning == PQ_FLOAT16 && bytes.len == 2) {
        write_number(out, half_value(bytes.data));
    } else if (leaf->meaning == PQ_UUID && bytes.len == 16) {
        write_uuid(out, bytes.data);
    } else {
        json_write_string(out, bytes.data, bytes.len);
    }
}

static void write_integer(StrBuf *out, const ParquetNode *leaf, int64_t value)
{
    switch (leaf->meaning) {
    case PQ_DECIMAL: {
        uint64_t high_first = __builtin_bswap64((uint64_t)value);
        write_decimal(out, (Str){(const char *)&high_first, sizeof high_first}, leaf->scale);
        return;
    }
    case PQ_TIMESTAMP:
        write_timestamp(out, value, leaf->unit);
        return;
    case PQ_DATE:
        strbuf_putc(out, '"');
        write_date(out, (int32_t)value);
        strbuf_putc(out, '"');
        return;
    case PQ_TIME: {
        int64_t second = units_a_second(leaf->unit), a_day = 86400 * second;
        int64_t of_day = floor_mod(value, a_day);
        strbuf_putc(out, '"');
        write_time(out, of_day * (1000000000 / second));
        strbuf_putc(out, '"');
        return;
    }
    case PQ_UNSIGNED:
        strbuf_printf(out, "%llu", leaf->type == PQ_INT32 ? (unsigned long long)(uint32_t)value : (unsigned long long)value);
        return;
    default:
        strbuf_printf(out, "%lld", (long long)value);
    }
}

void parquet_write_value(StrBuf *out, const ParquetNode *leaf, PqValue value)
{
    switch (leaf->type) {
    case PQ_BOOLEAN:
        strbuf_puts(out, value.integer ? "true" : "false");
        return;
    case PQ_INT32:
    case PQ_INT64:
        write_integer(out, leaf, value.integer);
        return;
    case PQ_INT96:
        write_int96(out, value.bytes.data);
        return;
    case PQ_FLOAT:
    case PQ_DOUBLE:
        write_number(out, value.number);
        return;
    default:
        write_bytes(out, leaf, value.bytes);
    }
}
