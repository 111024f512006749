/* RapidJSON's iterative reader (no recursion, so nesting can't overflow the stack) behind one C callback. Numbers are
 * passed on as text: json.c tells integers from doubles. */
#include "base/json_reader.h"

#include <immintrin.h>
#include <rapidjson/error/en.h>
#include <rapidjson/reader.h>

#include <cstring>

namespace {

/* What the reader's code for writable streams names; never called. */
struct NotWritable {
    char *PutBegin() { return nullptr; }
    size_t PutEnd(char *) { return 0; }
    void Put(char) {}
};

/* A text of known length; NUL stands for its end, as RapidJSON wants it. */
struct BoundedStream : NotWritable {
    typedef char Ch;
    const char *begin, *at, *end;

    Ch     Peek() const { return at < end ? *at : '\0'; }
    Ch     Take() { return at < end ? *at++ : '\0'; }
    size_t Tell() const { return static_cast<size_t>(at - begin); }

    BoundedStream(const char *text, size_t len) : begin(text), at(text), end(text + len) {}
};

/* The base has what isn't overridden: numbers by type, which never come, as they are read as text. */
struct Forward : rapidjson::BaseReaderHandler<rapidjson::UTF8<>, Forward> {
    JsonHandler          handler;
    void                *context;
    const BoundedStream *stream;

    Forward(JsonHandler handler, void *context, const BoundedStream *stream)
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
    bool RawNumber(const char *text, rapidjson::SizeType len, bool) { return send(JSON_EVENT_NUMBER, text, len); }
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

bool is_utf8(const char *text, size_t len)
{
    BoundedStream stream(text, len);
    NoOutput      output;
    while (stream.at < stream.end) {
        while (stream.end - stream.at >= 32 &&
               _mm256_movemask_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(stream.at))) == 0)
            stream.at += 32;
        if (stream.at < stream.end && !rapidjson::UTF8<>::Validate(stream, output)) return false;
    }
    return true;
}

} // namespace

/* The reader's place for scanning more than one byte at a time. It asks only where it needn't look at the encoding. */
namespace rapidjson {
template <>
template <>
inline void Reader::ScanCopyUnescapedString(BoundedStream &is, Reader::StackStream<char> &os)
{
    const char *stop = plain_end(is.at, is.end);
    SizeType    len = static_cast<SizeType>(stop - is.at);
    if (len) memcpy(os.Push(len), is.at, len);
    is.at = stop;
}
} // namespace rapidjson

const char *json_read_events(const char *text, size_t len, JsonHandler handler, void *context, size_t *out_offset)
{
    enum : unsigned {
        FLAGS = rapidjson::kParseIterativeFlag | rapidjson::kParseNumbersAsStringsFlag,
        CHECKED_FLAGS = FLAGS | rapidjson::kParseValidateEncodingFlag /* slower: only to say what is wrong */
    };
    enum : size_t { STACK_BYTES = 4096 }; /* strings are put together here: few of them make it grow */
    BoundedStream     stream(text, len);
    Forward           forward(handler, context, &stream);
    rapidjson::Reader reader(nullptr, STACK_BYTES);
    rapidjson::ParseResult result =
        is_utf8(text, len) ? reader.Parse<FLAGS>(stream, forward) : reader.Parse<CHECKED_FLAGS>(stream, forward);
    *out_offset = result.IsError() ? result.Offset() : stream.Tell();
    if (result.IsError()) return rapidjson::GetParseError_En(result.Code());
    return stream.at < stream.end ? "a NUL byte outside of strings" : nullptr;
}
