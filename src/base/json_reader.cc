/* RapidJSON's iterative reader (no recursion, so nesting can't overflow the stack) behind one C callback. Strings are decoded
 * where they stand. Numbers are passed on as text: json.c tells integers from doubles. */
#include "base/json_reader.h"

#include <immintrin.h>
#include <rapidjson/error/en.h>
#include <rapidjson/reader.h>

#include <cstring>

namespace {

/* A text that a NUL follows, which stands for its end, as RapidJSON wants it. What is put overwrites what was read. A character
 * that the end cuts is put with the NULs that are read in its place, which go nowhere. */
struct Text {
    typedef char Ch;
    char *begin, *at, *end, *out;

    Ch     Peek() const { return *at; }
    Ch     Take() { return at < end ? *at++ : '\0'; }
    size_t Tell() const { return static_cast<size_t>(at - begin); }
    char  *PutBegin() { return out = at; }
    void   Put(char c)
    {
        if (out < end) *out++ = c;
    }
    size_t PutEnd(char *from) { return static_cast<size_t>(out - from); }

    Text(char *text, size_t len) : begin(text), at(text), end(text + len), out(text) {}
};

/* The base has what isn't overridden: numbers by type, which never come, as they are read as text. */
struct Forward : rapidjson::BaseReaderHandler<rapidjson::UTF8<>, Forward> {
    JsonHandler handler;
    void       *context;
    const Text *stream;

    Forward(JsonHandler handler, void *context, const Text *stream)
        : handler(handler), context(context), stream(stream)
    {
    }
    bool send(JsonEvent event, const char *text = "", size_t len = 0)
    {
        return handler(context, event, text, len, stream->Tell() - 1);
    }
    /* The iterative reader reports brackets before it consumes them. */
    bool bracket(JsonEvent event) { return handler(context, event, "", 0, stream->Tell()); }
    bool Null() { return send(JSON_EVENT_NULL); }
    bool Bool(bool value) { return send(value ? JSON_EVENT_TRUE : JSON_EVENT_FALSE); }
    bool RawNumber(const char *, rapidjson::SizeType len, bool) { return send(JSON_EVENT_NUMBER, stream->at - len, len); }
    bool String(const char *text, rapidjson::SizeType len, bool) { return send(JSON_EVENT_STRING, text, len); }
    bool Key(const char *text, rapidjson::SizeType len, bool) { return send(JSON_EVENT_KEY, text, len); }
    bool StartObject() { return bracket(JSON_EVENT_OPEN_OBJECT); }
    bool EndObject(rapidjson::SizeType) { return bracket(JSON_EVENT_CLOSE_OBJECT); }
    bool StartArray() { return bracket(JSON_EVENT_OPEN_ARRAY); }
    bool EndArray(rapidjson::SizeType) { return bracket(JSON_EVENT_CLOSE_ARRAY); }
};

/* The first byte that a string doesn't hold as it is: a quote, a backslash, a control character. */
const char *plain_end(const char *at, const char *end)
{
    const __m256i quote = _mm256_set1_epi8('"'), slash = _mm256_set1_epi8('\\'), control = _mm256_set1_epi8(0x1F);
    for (; end - at >= 32; at += 32) {
        __m256i bytes = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(at));
        __m256i stops = _mm256_or_si256(_mm256_cmpeq_epi8(bytes, quote), _mm256_cmpeq_epi8(bytes, slash));
        stops = _mm256_or_si256(stops, _mm256_cmpeq_epi8(_mm256_max_epu8(bytes, control), control));
        unsigned mask = static_cast<unsigned>(_mm256_movemask_epi8(stops));
        if (mask) return at + __builtin_ctz(mask);
    }
    while (at < end && *at != '"' && *at != '\\' && static_cast<unsigned char>(*at) > 0x1F) at++;
    return at;
}

struct NoOutput {
    void Put(char) {}
};

bool is_utf8(Text text)
{
    NoOutput output;
    while (text.at < text.end) {
        while (text.end - text.at >= 32 && _mm256_movemask_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(text.at))) == 0)
            text.at += 32;
        if (text.at < text.end && !rapidjson::UTF8<>::Validate(text, output)) return false;
    }
    return true;
}

} // namespace

/* The reader's place for scanning more than one byte at a time. It asks only where it needn't look at the encoding. */
namespace rapidjson {
template <>
template <>
inline void Reader::ScanCopyUnescapedString(Text &is, Text &)
{
    const char *stop = plain_end(is.at, is.end);
    size_t      len = static_cast<size_t>(stop - is.at);
    if (is.out != is.at) memmove(is.out, is.at, len);
    is.at += len;
    is.out += len;
}
} // namespace rapidjson

const char *json_read_events(char *text, size_t len, JsonHandler handler, void *context, size_t *out_offset)
{
    enum : unsigned {
        FLAGS = rapidjson::kParseInsituFlag | rapidjson::kParseIterativeFlag | rapidjson::kParseNumbersAsStringsFlag,
        CHECKED_FLAGS = FLAGS | rapidjson::kParseValidateEncodingFlag /* slower: only to say what is wrong */
    };
    Text              stream(text, len);
    Forward           forward(handler, context, &stream);
    rapidjson::Reader reader;
    rapidjson::ParseResult result = is_utf8(stream) ? reader.Parse<FLAGS>(stream, forward) : reader.Parse<CHECKED_FLAGS>(stream, forward);
    *out_offset = result.IsError() ? result.Offset() : stream.Tell();
    if (result.IsError()) return rapidjson::GetParseError_En(result.Code());
    return stream.at < stream.end ? "a NUL byte outside of strings" : nullptr;
}
