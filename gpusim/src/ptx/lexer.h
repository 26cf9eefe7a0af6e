// PTX text cut into words and punctuation.
#pragma once
#include <string_view>
#include <vector>

namespace gpusim::ptx
{

struct Token {
    std::string_view text; // an opcode with its modifiers is one word: "ld.global.v4.u32"
    int line;
};

// Comments are dropped; a string literal is one token with its quotes. The tokens point into `text`.
std::vector<Token> tokenize(std::string_view text);

} // namespace gpusim::ptx
