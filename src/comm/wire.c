#include "comm/wire.h"

static bool has_magic(const char *magic)
{
    return memcmp(magic, WIRE_MAGIC, 8) == 0;
}

bool wire_hello_read(const void *bytes, WireHello *out)
{
    memcpy(out, bytes, sizeof *out);
    return has_magic(out->magic) && out->channel >= 0 && out->channel < CHANNEL_COUNT && out->zero == 0;
}

bool wire_verdict_read(const void *bytes, WireVerdict *out)
{
    memcpy(out, bytes, sizeof *out);
    out->why[sizeof out->why - 1] = 0;
    return has_magic(out->magic) && out->status >= 0 && out->status < STATUS_COUNT;
}

bool wire_control_read(const void *bytes, WireControl *out)
{
    memcpy(out, bytes, sizeof *out);
    out->phase[sizeof out->phase - 1] = 0;
    out->why[sizeof out->why - 1] = 0;
    return has_magic(out->magic) && out->kind >= 0 && out->kind < WIRE_KIND_COUNT && out->rank >= 0 && out->rank < COMM_MOST_RANKS &&
           out->cause >= 0 && out->cause < STATUS_COUNT && out->silence >= 0 && out->silence < 1e9 && out->longest >= 0 &&
           out->longest < 1e9;
}

bool wire_call_read(const void *bytes, CommCall *out)
{
    WireCall call;
    memcpy(&call, bytes, sizeof call);
    *out = (CommCall){
        .kind = (CommKind)call.kind, .root = call.root, .dtype = (DType)call.dtype, .reduce = (CommReduce)call.reduce, .count = call.count};
    return has_magic(call.magic) && call.kind >= 0 && call.kind < COMM_KIND_COUNT && call.root >= 0 && call.root < COMM_MOST_RANKS &&
           call.dtype >= 0 && call.dtype < DT_COUNT && call.reduce >= 0 && call.reduce < COMM_REDUCE_COUNT && call.count >= 0;
}

void wire_call_write(const CommCall *call, WireCall *out)
{
    *out = (WireCall){.kind = (int32_t)call->kind,
                      .root = call->root,
                      .dtype = (int32_t)call->dtype,
                      .reduce = (int32_t)call->reduce,
                      .count = call->count};
    memcpy(out->magic, WIRE_MAGIC, 8);
}

void wire_mac(const char *secret, WireSide side, const WireHello *hello, const WireChallenge *challenge, const WireVerdict *verdict,
              uint8_t out[SHA256_BYTES])
{
    uint8_t text[1 + sizeof *hello + sizeof *challenge + sizeof *verdict];
    size_t  used = 1;
    text[0] = (uint8_t)side;
    memcpy(text + used, hello, sizeof *hello), used += sizeof *hello;
    memcpy(text + used, challenge, sizeof *challenge), used += sizeof *challenge;
    if (verdict) memcpy(text + used, verdict, offsetof(WireVerdict, mac)), used += offsetof(WireVerdict, mac);
    hmac_sha256(secret, strlen(secret), text, used, out);
}
