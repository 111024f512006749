/* A tokenizer of 29 tokens. */
#pragma once

/* a-z are ids 0 to 25; 26 and 27 are the two bytes of é; 28 ends texts. */
static const char tiny_tokenizer[] =
    "{\"version\":\"1.0\",\"added_tokens\":[{\"id\":28,\"content\":\"<end>\",\"special\":true,\"normalized\":false,\"lstrip\":false,"
    "\"rstrip\":false,\"single_word\":false}],\"normalizer\":null,\"post_processor\":null,"
    "\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":true},"
    "\"decoder\":{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},"
    "\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
    "\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{\"a\":0,\"b\":1,\"c\":2,\"d\":3,\"e\":4,\"f\":5,\"g\":6,\"h\":7,\"i\":8,\"j\":9,\"k\":10,"
    "\"l\":11,\"m\":12,\"n\":13,\"o\":14,\"p\":15,\"q\":16,\"r\":17,\"s\":18,\"t\":19,\"u\":20,\"v\":21,\"w\":22,\"x\":23,\"y\":24,\"z\":25,"
    "\"\xC3\x83\":26,\"\xC2\xA9\":27},\"merges\":[]}}";

enum { TINY_E_FIRST = 26, TINY_E_SECOND = 27, TINY_END = 28 };
