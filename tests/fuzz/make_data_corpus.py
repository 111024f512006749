"""Writes the seed files of fuzz_parquet, fuzz_jsonl, fuzz_csv and fuzz_shard: small files that between them take every
branch of the readers. Needs only Python; run in the repository's root. The result is committed."""
import gzip, os, struct

OUT = os.path.join(os.path.dirname(__file__), "corpus")

# ---- Thrift compact protocol: a struct is a list of (field id, type, value)

BOOL, I32, I64, BINARY, LIST, STRUCT = 1, 5, 6, 8, 9, 12


def varint(n):
    out = b""
    while n > 127:
        out += bytes([n & 127 | 128])
        n >>= 7
    return out + bytes([n])


def zigzag(n):
    return varint(n << 1 if n >= 0 else (-n << 1) - 1)


def value(kind, v):
    if kind in (I32, I64):
        return zigzag(v)
    if kind == BINARY:
        return varint(len(v)) + v
    if kind == STRUCT:
        return thrift(v)
    item, items = v
    return bytes([(min(len(items), 15) << 4) | item]) + (varint(len(items)) if len(items) > 14 else b"") + b"".join(
        value(item, i) for i in items)


def thrift(fields):
    out, last = b"", 0
    for number, kind, v in fields:
        if kind == BOOL:
            kind, body = (1 if v else 2), b""
        else:
            body = value(kind, v)
        delta = number - last
        out += (bytes([delta << 4 | kind]) if 0 < delta < 16 else bytes([kind]) + zigzag(number)) + body
        last = number
    return out + b"\0"


# ---- encodings

def bits(values, width):
    n = 0
    for i, v in enumerate(values):
        n |= v << (i * width)
    return n.to_bytes((len(values) * width + 7) // 8, "little")


def rle(values, width):
    """The first half as runs, the rest bit-packed."""
    out, half = b"", len(values) // 2
    for v in values[:half]:
        out += varint(1 << 1) + v.to_bytes((width + 7) // 8, "little")
    rest = values[half:]
    groups = (len(rest) + 7) // 8
    return out + (varint(groups << 1 | 1) + bits(rest + [0] * (groups * 8 - len(rest)), width) if rest else b"")


def delta(values, block=32, minis=4):
    out = varint(block) + varint(minis) + varint(len(values)) + zigzag(values[0] if values else 0)
    deltas = [b - a for a, b in zip(values, values[1:])]
    for at in range(0, len(deltas), block):
        part = deltas[at:at + block]
        least = min(part)
        size = block // minis
        cut = [[d - least for d in part[i:i + size]] for i in range(0, block, size)]
        widths = [max(c).bit_length() if c else 0 for c in cut]
        out += zigzag(least) + bytes(widths)
        for c, w in zip(cut, widths):
            if c:
                out += bits(c + [0] * (size - len(c)), w)
    return out


def delta_lengths(values):
    return delta([len(v) for v in values]) + b"".join(values)


def delta_bytes(values):
    prefixes, suffixes, last = [], [], b""
    for v in values:
        n = len(os.path.commonprefix([v, last]))
        prefixes.append(n)
        suffixes.append(v[n:])
        last = v
    return delta(prefixes) + delta_lengths(suffixes)


def split(values):
    return b"".join(bytes(v[i] for v in values) for i in range(len(values[0])))


def plain_bytes(values):
    return b"".join(struct.pack("<I", len(v)) + v for v in values)


# ---- codecs

def snappy(data):
    out = varint(len(data))
    if len(data) > 12 and data[:4] == data[4:8]:  # copies of each kind
        out += bytes([3 << 2]) + data[:4] + bytes([1, 4]) + bytes([3 << 2 | 2]) + struct.pack("<H", 4)
        rest = data[12:] if data[8:12] == data[4:8] else None
        if rest is None:
            return varint(len(data)) + literal(data)
        if rest[:2] == data[:2] and len(rest) >= 2:
            out += bytes([1 << 2 | 3]) + struct.pack("<I", 12)
            rest = rest[2:]
        return out + (literal(rest) if rest else b"")
    return out + literal(data)


def literal(data):
    n = len(data) - 1
    if n < 60:
        return bytes([n << 2]) + data
    return bytes([60 << 2, n]) + data if n < 256 else bytes([61 << 2]) + struct.pack("<H", n) + data


def lz4_block(data):
    n = len(data)
    head = bytes([min(n, 15) << 4])
    if n >= 15:
        head += b"\xff" * ((n - 15) // 255) + bytes([(n - 15) % 255])
    return head + data


def lz4_hadoop(data):
    block = lz4_block(data)
    return struct.pack(">II", len(data), len(block)) + block


def zstd_raw(data):  # one raw block
    return b"\x28\xb5\x2f\xfd\xa0" + struct.pack("<I", len(data)) + (len(data) << 3 | 1).to_bytes(3, "little") + data


def brotli_raw(data):  # one uncompressed meta-block, then an empty last one (RFC 7932, section 9.2)
    n = 0 | 0 << 1 | 0 << 2 | (len(data) - 1) << 4 - 1 | 1 << 19
    return n.to_bytes(3, "little") + data + b"\x03"


CODECS = {0: lambda d: d, 1: snappy, 2: gzip.compress, 3: lambda d: d, 4: brotli_raw, 5: lz4_hadoop, 6: zstd_raw, 7: lz4_block}

# ---- files

PLAIN, DICT2, RLE, PACKED, DELTA, DELTA_LENGTH, DELTA_BYTES, DICT, SPLIT = 0, 2, 3, 4, 5, 6, 7, 8, 9
BOOLEAN, INT32, INT64, INT96, FLOAT, DOUBLE, BYTES, FIXED = range(8)


def node(name, type=None, repetition=0, children=0, converted=None, logical=None, fixed=None, scale=None):
    f = []
    if type is not None:
        f.append((1, I32, type))
    if fixed is not None:
        f.append((2, I32, fixed))
    f += [(3, I32, repetition), (4, BINARY, name)]
    if children:
        f.append((5, I32, children))
    if converted is not None:
        f.append((6, I32, converted))
    if scale is not None:
        f += [(7, I32, scale), (8, I32, 9)]
    if logical is not None:
        f.append((10, STRUCT, logical))
    return f


def page(body, codec, n, encoding, reps=None, defs=None, rep_width=1, def_width=1, v2=False, level_encoding=RLE, type=0):
    r = rle(reps, rep_width) if reps is not None else b""
    d = rle(defs, def_width) if defs is not None else b""
    if v2:
        packed = CODECS[codec](body)
        head = [(1, I32, 3), (2, I32, len(r + d + body)), (3, I32, len(r + d + packed)), (8, STRUCT, [
            (1, I32, n), (2, I32, 0), (3, I32, n), (4, I32, encoding), (5, I32, len(d)), (6, I32, len(r)), (7, BOOL, True)])]
        return thrift(head) + r + d + packed
    raw = (struct.pack("<I", len(r)) + r if reps is not None else b"") + (struct.pack("<I", len(d)) + d if defs is not None else b"") + body
    packed = CODECS[codec](raw)
    kind = [(1, I32, n), (2, I32, encoding)] + ([(3, I32, level_encoding), (4, I32, level_encoding)] if type == 0 else [])
    return thrift([(1, I32, type), (2, I32, len(raw)), (3, I32, len(packed)), (4, I32, 7), (7 if type == 2 else 5, STRUCT, kind)]) + packed


def parquet(schema, columns, rows, magic=b"PAR1", extra_chunk=(), footer_rows=None):
    """columns: (codec, number of values, pages, has a dictionary page)"""
    out, chunks = b"PAR1", []
    for codec, n, pages, has_dictionary in columns:
        begin = len(out)
        data = begin + (len(pages[0]) if has_dictionary else 0)
        out += b"".join(pages)
        meta = [(1, I32, 0), (2, LIST, (I32, [0, 3])), (3, LIST, (BINARY, [b"x"])), (4, I32, codec), (5, I64, n), (6, I64, 99),
                (7, I64, len(out) - begin), (9, I64, data)] + ([(11, I64, begin)] if has_dictionary else [])
        chunks.append([(2, I64, begin), (3, STRUCT, meta)] + list(extra_chunk))
    group = [(1, LIST, (STRUCT, chunks)), (2, I64, 99), (3, I64, rows)]
    root = [(4, BINARY, b"root"), (5, I32, sum(1 for _ in top(schema)))]
    meta = thrift([(1, I32, 2), (2, LIST, (STRUCT, [root] + schema)), (3, I64, rows if footer_rows is None else footer_rows),
                   (4, LIST, (STRUCT, [group])), (6, BINARY, b"seed")])
    return out + meta + struct.pack("<I", len(meta)) + magic


def top(schema):
    """Top-level nodes of a flattened schema."""
    at = 0
    while at < len(schema):
        yield at
        need = 1
        while need and at < len(schema):
            need += dict((f[0], f[2]) for f in schema[at]).get(5, 0) - 1
            at += 1


def one(schema_node, body, n, encoding=PLAIN, codec=0, **kw):
    return parquet([schema_node], [(codec, n, [page(body, codec, n, encoding, **kw)], False)], n)


def parquet_seeds():
    i32 = lambda *v: struct.pack("<%di" % len(v), *v)
    i64 = lambda *v: struct.pack("<%dq" % len(v), *v)
    words = [b"alpha", b"alphabet", b"beta", b"", b"\xff\x00x"]
    seeds = {}
    seeds["boolean"] = one(node(b"a", BOOLEAN), b"\x05", 3)
    seeds["boolean_rle"] = one(node(b"a", BOOLEAN), struct.pack("<I", len(rle([1, 0, 1, 1], 1))) + rle([1, 0, 1, 1], 1), 4, RLE)
    for name, converted in (("date", 6), ("time_ms", 7), ("unsigned", 13), ("decimal", 5), ("int", 17)):
        seeds["i32_" + name] = one(node(b"a", INT32, converted=converted, scale=2), i32(1, -70000, 2 ** 31 - 1), 3)
    for name, converted in (("time_us", 8), ("ms", 9), ("us", 10), ("unsigned", 14), ("out_of_range", 99)):
        seeds["i64_" + name] = one(node(b"a", INT64, converted=converted), i64(1, -1, 1234567890123456789, 86400000), 4)
    for unit in (1, 2, 3):
        logical = [(8, STRUCT, [(1, BOOL, True), (2, STRUCT, [(unit, STRUCT, [])])])]
        seeds["timestamp_%d" % unit] = one(node(b"a", INT64, logical=logical), i64(1, 1001, 10 ** 18 + 1), 3)
    kinds = {"string": (1, BYTES), "enum": (4, BYTES), "json": (12, BYTES), "date": (6, INT32), "bson": (13, BYTES)}
    for name, (number, kind) in kinds.items():
        body = i32(9, 8) if kind == INT32 else plain_bytes([b"x", b"\xc3\xa9"])
        seeds["logical_" + name] = one(node(b"a", kind, logical=[(number, STRUCT, [])]), body, 2)
    seeds["logical_decimal"] = one(node(b"a", FIXED, fixed=3, logical=[(5, STRUCT, [(1, I32, 1), (2, I32, 5)])]), b"\x00\x01\x02\xff\xff\xfe", 2)
    seeds["logical_uint"] = one(node(b"a", INT64, logical=[(10, STRUCT, [(1, I32, 64), (2, BOOL, False)])]), i64(-1, 5), 2)
    seeds["logical_time_odd"] = one(node(b"a", INT64, logical=[(7, STRUCT, [(1, BOOL, True), (2, I32, 5)])]), i64(-1, 5), 2)
    seeds["logical_odd"] = one(node(b"a", INT64, logical=[(7, I32, 3)]), i64(-1, 5), 2)
    seeds["uuid"] = one(node(b"a", FIXED, fixed=16, logical=[(14, STRUCT, [])]), bytes(range(16)), 1)
    seeds["float16"] = one(node(b"a", FIXED, fixed=2, logical=[(15, STRUCT, [])]), bytes.fromhex("003c00c0007e007c0100"), 5)
    seeds["float"] = one(node(b"a", FLOAT), struct.pack("<4f", 1.5, -2, float("nan"), 1e30), 4)
    seeds["double"] = one(node(b"a", DOUBLE), struct.pack("<3d", 0.1, 3, float("inf")), 3)
    seeds["int96"] = one(node(b"a", INT96), struct.pack("<qIqI", 5, 2440589, -1, 2440588), 2)
    for codec in range(9):
        body = plain_bytes([b"\1\0\0\0" * 4]) if codec == 1 else plain_bytes(words)
        n = 1 if codec == 1 else 5
        data = one(node(b"a", BYTES, converted=0), body, n, codec=codec) if codec < 8 else None
        if data:
            seeds["codec_%d" % codec] = data
            seeds["codec_%d_damaged" % codec] = data[:30] + bytes([data[30] ^ 0x55]) + data[31:]
    seeds["snappy_copies"] = one(node(b"a", INT32), i32(1, 1, 1, 65537, 9), 5, codec=1)
    seeds["snappy_long"] = one(node(b"a", BYTES), plain_bytes([bytes(range(200)), bytes(range(256)) * 2]), 2, codec=1)
    seeds["snappy_repeats"] = parquet([node(b"a", INT32)], [(1, 3, [thrift([(1, I32, 0), (2, I32, 12), (3, I32, 9), (5, STRUCT, [
        (1, I32, 3), (2, I32, 0), (3, I32, 3), (4, I32, 3)])]) + b"\x0c\x0c\1\0\0\0" + bytes([1 | 4 << 2, 4]) + b"\0"], False)], 3)
    seeds["gzip_members"] = parquet([node(b"a", INT32)], [(2, 2, [thrift([(1, I32, 0), (2, I32, 8), (3, I32, 2 * len(gzip.compress(i32(1)))), (
        5, STRUCT, [(1, I32, 2), (2, I32, 0), (3, I32, 3), (4, I32, 3)])]) + gzip.compress(i32(1)) * 2], False)], 2)
    seeds["codec_unknown"] = parquet([node(b"a", INT32)], [(77, 1, [page(i32(1), 0, 1, 0)], False)], 1)
    seeds["v2_codec"] = one(node(b"a", BYTES, 1), plain_bytes(words[:2]), 4, codec=6, defs=[1, 0, 1, 0], v2=True)
    seeds["v2_plain"] = one(node(b"a", INT32, 1), i32(7), 2, defs=[0, 1], v2=True)
    for name, encoding, body, n, kind in (("delta", DELTA, delta(list(range(0, 900, 7)) + [-5, 2 ** 62]), 131, INT64),
                                          ("delta32", DELTA, delta([5, 1, 9]), 3, INT32),
                                          ("delta_length", DELTA_LENGTH, delta_lengths(words), 5, BYTES),
                                          ("delta_bytes", DELTA_BYTES, delta_bytes(words), 5, BYTES),
                                          ("split32", SPLIT, split([i32(1), i32(-2), i32(3)]), 3, INT32),
                                          ("split64", SPLIT, split([struct.pack("<d", 1.5), struct.pack("<d", 2.5)]), 2, DOUBLE)):
        seeds[name] = one(node(b"a", kind), body, n, encoding)
        seeds[name + "_short"] = one(node(b"a", kind), body[:-2], n + 40, encoding)
        seeds[name + "_wrong"] = one(node(b"a", BOOLEAN), body, n, encoding)
    seeds["delta_fixed"] = one(node(b"a", FIXED, fixed=4), delta_bytes([b"abcd", b"abxy"]), 2, DELTA_BYTES)
    for i, head in enumerate((varint(0) + varint(0), varint(128) + varint(3), varint(40) + varint(8), varint(2 ** 40) + varint(1), b"\xff" * 12,
                              varint(32) + varint(4) + varint(9) + zigzag(0) + zigzag(1) + b"\x41\x41\x41\x41" + b"x" * 40)):
        seeds["delta_head_%d" % i] = one(node(b"a", INT64), head + varint(9) + zigzag(0), 3, DELTA)
        seeds["delta_lengths_head_%d" % i] = one(node(b"a", BYTES), head + varint(9) + zigzag(0), 3, DELTA_LENGTH)
    dictionary = page(plain_bytes(words), 1, 5, PLAIN, type=2)
    seeds["dictionary"] = parquet([node(b"a", BYTES)], [(1, 6, [dictionary, page(b"\x03" + rle([0, 1, 2, 3, 4, 0], 3), 1, 6, DICT2)], True)], 6)
    seeds["dictionary_index"] = parquet([node(b"a", BYTES)], [(1, 2, [dictionary, page(b"\x03" + rle([7, 1], 3), 1, 2, DICT)], True)], 2)
    seeds["dictionary_wide"] = parquet([node(b"a", BYTES)], [(1, 2, [dictionary, page(b"\x21" + rle([7, 1], 3), 1, 2, DICT)], True)], 2)
    seeds["dictionary_short"] = parquet([node(b"a", BYTES)], [(1, 2, [page(plain_bytes(words[:1]), 1, 5, PLAIN, type=2)], True)], 2)
    seeds["dictionary_many"] = parquet([node(b"a", BYTES)], [(1, 2, [page(plain_bytes(words[:1]), 1, 50, PLAIN, type=2)], True)], 2)
    seeds["dictionary_none"] = one(node(b"a", BYTES), b"\x03\x03\x03", 2, DICT)
    seeds["dictionary_zero_width"] = parquet([node(b"a", BYTES)], [(1, 2, [dictionary, page(b"\0", 1, 2, DICT)], True)], 2)
    # nested
    string = lambda name, repetition=1: node(name, BYTES, repetition, converted=0)
    lists = [node(b"l", None, 1, 1, converted=3), node(b"list", None, 2, 1), string(b"element")]
    seeds["list"] = parquet(lists, [(0, 5, [page(plain_bytes([b"a", b"b"]), 0, 5, 0, [0, 1, 0, 0, 0], [3, 3, 0, 1, 2], 1, 2)], False)], 4)
    old = [node(b"l", None, 0, 1, converted=3), node(b"array", INT32, 2)]
    seeds["list_old"] = parquet(old, [(0, 3, [page(i32(1, 2, 3), 0, 3, 0, [0, 1, 1], [1, 1, 1])], False)], 1)
    pair = [node(b"l", None, 1, 1, logical=[(3, STRUCT, [])]), node(b"l_tuple", None, 2, 2), node(b"x", INT32), node(b"y", INT32, 1)]
    seeds["list_tuple"] = parquet(pair, [(0, 2, [page(i32(1, 2), 0, 2, 0, [0, 1], [2, 2], 1, 2)], False),
                                         (0, 2, [page(i32(5), 0, 2, 0, [0, 1], [3, 2], 1, 2)], False)], 1)
    maps = [node(b"m", None, 1, 1, converted=1), node(b"key_value", None, 2, 2), node(b"key", INT32), string(b"value")]
    seeds["map"] = parquet(maps, [(0, 3, [page(i32(1, 2), 0, 3, 0, [0, 1, 0], [2, 2, 0], 1, 2)], False),
                                  (0, 3, [page(plain_bytes([b"a"]), 0, 3, 0, [0, 1, 0], [3, 2, 0], 1, 2)], False)], 2)
    sets = [node(b"m", None, 1, 1, converted=1), node(b"key_value", None, 2, 1), string(b"key", 0)]
    seeds["map_keys"] = parquet(sets, [(0, 2, [page(plain_bytes([b"a"]), 0, 2, 0, [0, 0], [2, 1], 1, 2)], False)], 2)
    seeds["repeated"] = parquet([node(b"r", INT64, 2)], [(0, 3, [page(i64(1, 2), 0, 3, 0, [0, 1, 0], [1, 1, 0])], False)], 2)
    struct_ = [node(b"s", None, 1, 2), node(b"a", INT32, 1), node(b"b", INT32)]
    seeds["struct"] = parquet(struct_, [(0, 2, [page(i32(1), 0, 2, 0, None, [2, 0], 1, 2)], False), (0, 2, [page(i32(1), 0, 2, 0, None, [1, 0])], False)], 2)
    seeds["out_of_step"] = parquet(struct_, [(0, 2, [page(i32(1), 0, 2, 0, None, [2, 0], 1, 2)], False), (0, 1, [page(i32(1), 0, 1, 0, None, [1])], False)], 2)
    seeds["first_repeats"] = parquet([node(b"r", INT64, 2)], [(0, 1, [page(i64(1), 0, 1, 0, [1], [1])], False)], 1)
    seeds["bad_level"] = parquet([node(b"r", INT64, 1)], [(0, 1, [page(i64(1), 0, 1, 0, None, [3], 1, 2)], False)], 1)
    # damage
    good = one(node(b"a", INT32), i32(1, 2), 2)
    seeds["cut"] = good[:-1]
    seeds["short"] = b"PAR1"
    seeds["encrypted"] = good[:-4] + b"PARE"
    seeds["footer_long"] = good[:-8] + struct.pack("<I", 10 ** 6) + b"PAR1"
    seeds["footer_zero"] = good[:-8] + struct.pack("<I", 0) + b"PAR1"
    seeds["crypto"] = parquet([node(b"a", INT32)], [(0, 1, [page(i32(1), 0, 1, 0)], False)], 1, extra_chunk=[(8, STRUCT, [])])
    seeds["elsewhere"] = parquet([node(b"a", INT32)], [(0, 1, [page(i32(1), 0, 1, 0)], False)], 1, extra_chunk=[(16, I32, 1), (1, BINARY, b"f")])
    seeds["rows_differ"] = parquet([node(b"a", INT32)], [(0, 1, [page(i32(1), 0, 1, 0)], False)], 1, footer_rows=5)
    seeds["rows_more"] = parquet([node(b"a", INT32)], [(0, 1, [page(i32(1), 0, 1, 0)], False)], 9)
    seeds["rows_negative"] = parquet([node(b"a", INT32)], [(0, 1, [page(i32(1), 0, 1, 0)], False)], -1)
    seeds["values_more"] = parquet([node(b"a", INT32)], [(0, 9, [page(i32(1), 0, 1, 0)], False)], 9)
    seeds["values_fewer"] = parquet([node(b"a", INT32)], [(0, 1, [page(i32(1, 2), 0, 2, 0)], False)], 1)
    seeds["levels_packed"] = one(node(b"a", INT32, 1), i32(1), 1, defs=[1], level_encoding=PACKED)
    seeds["encoding_unknown"] = one(node(b"a", INT32), i32(1), 1, 55)
    seeds["rle_of_int"] = one(node(b"a", INT32), i32(1), 1, RLE)
    seeds["page_unknown"] = parquet([node(b"a", INT32)], [(0, 1, [thrift([(1, I32, 9), (2, I32, 0), (3, I32, 0)])], False)], 1)
    seeds["page_index"] = parquet([node(b"a", INT32)], [(0, 1, [thrift([(1, I32, 1), (2, I32, 0), (3, I32, 0)]), page(i32(4), 0, 1, 0)], False)], 1)
    seeds["page_big"] = parquet([node(b"a", INT32)], [(0, 1, [thrift([(1, I32, 0), (2, I32, 2 ** 30), (3, I32, 0)])], False)], 1)
    seeds["page_over"] = parquet([node(b"a", INT32)], [(0, 1, [thrift([(1, I32, 0), (2, I32, 3), (3, I32, 9999)])], False)], 1)
    seeds["page_negative"] = parquet([node(b"a", INT32)], [(0, 1, [thrift([(1, I32, 0), (2, I32, -3), (3, I32, 9)])], False)], 1)
    seeds["page_short_levels"] = parquet([node(b"a", INT32, 1)], [(0, 1, [page(b"", 0, 1, 0)], False)], 1)
    seeds["page_long_levels"] = parquet([node(b"a", INT32, 1)], [(0, 1, [page(b"\xff\xff\0\0\0", 0, 1, 0)], False)], 1)
    seeds["boolean_short"] = one(node(b"a", BOOLEAN), b"\1\0", 1, RLE)
    seeds["boolean_long"] = one(node(b"a", BOOLEAN), b"\xff\0\0\0\1", 1, RLE)
    seeds["v2_levels"] = parquet([node(b"a", INT32, 1)], [(0, 1, [thrift([(1, I32, 3), (2, I32, 4), (3, I32, 4), (8, STRUCT, [
        (1, I32, 1), (4, I32, 0), (5, I32, 99), (6, I32, 0), (7, BOOL, False)])]) + i32(1)], False)], 1)
    seeds["two_groups_widths"] = good[:4] + good[4:-8] + good[-8:]
    skip = [(20, LIST, (STRUCT, [[(1, 7, b"12345678")]]))]
    seeds["type_bad"] = parquet([node(b"a", 44)], [(0, 1, [page(i32(1), 0, 1, 0)], False)], 1)
    seeds["fixed_zero"] = parquet([node(b"a", FIXED, fixed=0)], [(0, 1, [page(i32(1), 0, 1, 0)], False)], 1)
    seeds["repetition_bad"] = parquet([node(b"a", INT32, 7)], [(0, 1, [page(i32(1), 0, 1, 0)], False)], 1)
    seeds["children_many"] = parquet([node(b"a", None, 0, 9), node(b"b", INT32)], [(0, 1, [page(i32(1), 0, 1, 0)], False)], 1)
    seeds["columns_more"] = parquet([node(b"a", INT32), node(b"b", INT32)], [(0, 1, [page(i32(1), 0, 1, 0)], False)], 1)
    seeds["deep"] = parquet([node(b"a", None, 0, 1)] * 40 + [node(b"b", INT32)], [(0, 1, [page(i32(1), 0, 1, 0)], False)], 1)
    seeds["no_name"] = parquet([[(1, I32, INT32), (3, I32, 0)]], [(0, 1, [page(i32(1), 0, 1, 0)], False)], 1)
    seeds["name_number"] = parquet([[(1, I32, INT32), (3, I32, 0), (4, I32, 5), (10, I32, 3)]], [(0, 1, [page(i32(1), 0, 1, 0)], False)], 1)
    # every Thrift type in an unknown field
    every = b"".join((b"\x01\xc8\x01", b"\x03\xc8\x01\x05", b"\x04\xc8\x01\x02", b"\x07\xc8\x01" + b"8" * 8, b"\x0b\xc8\x01\x01\x85\x01a\x02",
                      b"\x0b\xc8\x01\x00", b"\x0a\xc8\x01\x15\x02", b"\x09\xc8\x01\x21\x01\x02", b"\x0c\xc8\x01\x15\x02\x00"))
    for i, extra in enumerate((every, b"\x0e\xc8\x01", b"\x0b\xc8\x01\xff\x01", b"\x07\xc8\x01xx", b"\x08\xc8\x01\x7f", b"\x05\xff" + b"\xff" * 12,
                               b"\x0c\xc8\x01" * 40, b"\x09\xc8\x01\xfc\xff\x01")):
        body = page(i32(1), 0, 1, 0)
        meta = thrift([(1, I32, 2), (2, LIST, (STRUCT, [[(4, BINARY, b"r"), (5, I32, 1)], node(b"a", INT32)])), (3, I64, 1), (4, LIST, (STRUCT, [[
            (1, LIST, (STRUCT, [[(3, STRUCT, [(4, I32, 0), (5, I64, 1), (7, I64, len(body)), (9, I64, 4)])]])), (3, I64, 1)]]))])[:-1] + extra + b"\0"
        seeds["thrift_%d" % i] = b"PAR1" + body + meta + struct.pack("<I", len(meta)) + b"PAR1"
    return seeds


def jsonl_seeds():
    lines, array, text = b"\0", b"\1", b"\2"
    chat = b'{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo", "train": false}], "tools": "[{}]"}\n'
    rows = {
        "chat": lines + chat * 2, "crlf": lines + chat.replace(b"\n", b"\r\n") + b"\n \n",
        "sharegpt": lines + b'{"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": "{\\"name\\": \\"f\\", '
                            b'\\"arguments\\": \\"{}\\"}"}, {"from": "observation", "value": "1"}, {"from": "gpt", "value": "b"}], "system": "s", "tools": ""}\n',
        "calls": lines + b'{"messages": [{"role": "assistant", "content": null, "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "{}"}}], '
                         b'"weight": 1, "name": "n"}, {"role": "tool", "content": [{"type": "text"}], "masked": true}], "tools": []}\n',
        "alpaca": lines + b'{"instruction": "a", "input": "b", "output": "c"}\n{"instruction": "a", "input": "", "output": 5}\n{"instruction": "a"}\n'
                          b'{"instruction": "a", "output": ""}\n{"instruction": null, "output": "x"}\n{"instruction": [], "output": "x"}\n7\n',
        "dolly": lines + b'{"instruction": "a", "context": "b", "response": "c"}\n', "qa": lines + b'{"question": "a", "answer": "b"}\n',
        "text": lines + b'{"text": "a"}\n{"text": true}\n{"text": {}}\n', "content": lines + b'{"content": "a", "system": "s"}\n', "unknown": lines + b'{"x": 1, "y": "z"}\n{}\n[]\n',
        "odd_messages": lines + b'{"messages": [{"role": "user", "content": "a"}]}\n' + b"".join(b'{"messages": %s}\n' % m for m in (
            b"3", b"[]", b"[4]", b'[{"content": "a"}]', b'[{"role": "user"}]', b'[{"role": "user", "content": 5}]', b'[{"from": "function_call", "value": "no"}]',
            b'[{"role": "a", "content": "", "tool_calls": [3]}]', b'[{"role": "a", "content": "", "tool_calls": [{"function": 3}]}]',
            b'[{"role": "a", "content": "", "tool_calls": {"name": "f", "arguments": "x"}}]', b'[{"role": "system", "content": "a"}]', b'[{"from": "system", "value": "a"}]'))
            + b'{"messages": [{"role": "user", "content": "a"}], "tools": 3}\n',
        "bad": lines + b"{\n{}}\n\"\n", "gzip": lines + gzip.compress(chat, mtime=0) * 2, "gzip_cut": lines + gzip.compress(chat, mtime=0)[:-9],
        "gzip_damaged": lines + gzip.compress(chat, mtime=0)[:14] + b"\xff\xff\xff" + gzip.compress(chat, mtime=0)[17:],
        "zstd": lines + zstd_raw(chat) * 2, "zstd_cut": lines + zstd_raw(chat)[:-9], "zstd_damaged": lines + zstd_raw(chat)[:9] + b"\xff" * 9,
        "bom": lines + b"\xef\xbb\xbf" + chat, "utf16": lines + b"\xff\xfe{\0", "array": array + b'\n[ {"a": 1},\n {"b": "]\\"x"} , [1, [2]], "s", 5 ]\n ',
        "objects": array + b'{"a": 1}\n{"a": 2} 7 "x" null', "array_empty": array + b"[]", "array_open": array + b'[{"a": 1}', "array_comma": array + b'[{"a": 1},]',
        "array_missing": array + b"[1 2]", "array_after": array + b"[1] 2", "array_bad": array + b'[{"a":\n\n x}]', "array_close": array + b"]", "string_open": array + b'["abc',
        "array_escape": array + b'["\\', "array_comma_end": array + b"[1,", "empty": lines, "doc": text + b"some text\nin lines\n", "doc_gzip": text + gzip.compress(b"text", mtime=0),
        "many_messages": lines + b'{"messages": [%s]}\n' % b", ".join([b'{"role": "user", "content": "a"}'] * 9),
        "output_first": lines + b'{"instruction": "a", "input": "b", "output": "c"}', "file": lines + (b'{"text": "abcd"}\n' * 5)[:71], "file_gzip": lines + (gzip.compress(chat, mtime=0) + bytes(64))[:135],
        "rows": b"\3" + parquet_seeds()["struct"], "rows_file": b"\3" + (bytes(64) + parquet_seeds()["struct"])[-71:],
    }
    return rows


def csv_seeds():
    return {"plain": b"\0a,b\n1,2\n3,4\n", "quotes": b'\0text,b\r\n"x, ""y""\n",2\r\n\r\n"",\r\n', "tabs": b"\1text\tb\n1\t2\n", "open": b'\0a\n"x', "inside": b'\0a\nx"y\n',
            "after": b'\0a\n"x"y\n', "fields": b"\0a,b\n1\n1,2,3\n", "twice": b"\0a,a\n", "empty": b"\0", "blank": b"\0\n\n", "header": b"\0a,b",
            "header_bad": b'\0"a', "file": (b"\0text,b\n" + b"1,2\n" * 30)[:72], "wide": b"\0" + b",".join(b"c%d" % i for i in range(40)) + b"\n" + b"," * 39 + b"\n", "qa": b"\0question,answer\na,b\n",
            "last": b"\0text\nend", "cr": b"\0text\r\nend\r\n"}


def shard(tokens, vocab, documents, mask=None, **fields):
    width = 2 if vocab <= 65536 else 4
    body = b"".join(t.to_bytes(width, "little") for t in tokens)
    body += b"\0" * (-len(body) % 8)
    if mask is not None:
        body += mask.to_bytes((len(tokens) + 63) // 64 * 8, "little")
    body += b"".join(struct.pack("<Q", d) for d in documents)
    head = dict(magic=b"SGTOKENS", version=1, width=width, vocab=vocab, flags=mask is not None, hash=7, num_tokens=len(tokens), documents=len(documents) - 1,
                trained=0, size=128 + len(body), even=0)
    head.update(fields)
    return struct.pack("<8s4I6Q6QQ", head["magic"], head["version"], head["width"], head["vocab"], head["flags"], head["hash"], head["num_tokens"], head["documents"],
                       head["trained"], head["size"], 0, head["even"], 0, 0, 0, 0, 0, 0) + body


def shard_seeds():
    t = [5, 6, 7, 8, 9]
    return {"u16": shard(t, 100, [0, 2, 5]), "u32": shard(t, 70000, [0, 2, 5]), "mask": shard(t, 100, [0, 5], 21), "beyond": shard([5, 99], 9, [0, 2]),
            "index": shard(t, 100, [0, 2, 4]), "falling": shard(t, 100, [0, 3, 2, 5]), "magic": shard(t, 100, [0, 5], magic=b"SGTOKENX"), "version": shard(t, 100, [0, 5], version=2),
            "width": shard(t, 100, [0, 5], width=3), "many": shard(t, 100, [0, 5], num_tokens=2 ** 62), "counts": shard(t, 100, [0, 5], num_tokens=3), "short": b"SGTOKENS",
            "size": shard(t, 100, [0, 5], even=1, size=5), "checksum": shard(t, 100, [0, 5])[:72] + b"\1" + shard(t, 100, [0, 5])[73:], "none": shard([], 100, [0])}


for name, seeds in (("parquet", parquet_seeds()), ("jsonl", jsonl_seeds()), ("csv", csv_seeds()), ("shard", shard_seeds())):
    os.makedirs(os.path.join(OUT, name), exist_ok=True)
    for seed, data in seeds.items():
        with open(os.path.join(OUT, name, seed), "wb") as file:
            file.write(data)
    print(name, len(seeds))
