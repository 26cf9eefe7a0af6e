#include "lexer.h"

#include <cctype>

namespace gpusim::ptx
{

namespace
{

bool is_word(char c)
{
    return isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '$' || c == '%' || c == '.';
}

// The end of the word that starts at `at`. "shared::cta" is part of a word, a label's colon is not.
size_t word_end(std::string_view text, size_t at)
{
    for (;;) {
        while (at < text.size() && is_word(text[at])) {
            at++;
        }
        if (at + 2 < text.size() && text[at] == ':' && text[at + 1] == ':' && is_word(text[at + 2])) {
            at += 2;
            continue;
        }
        return at;
    }
}

size_t skip_comment(std::string_view text, size_t at, int *line)
{
    if (text[at + 1] == '/') {
        size_t end = text.find('\n', at);
        return end == std::string_view::npos ? text.size() : end;
    }
    size_t end = text.find("*/", at + 2);
    end = end == std::string_view::npos ? text.size() : end + 2;
    for (size_t i = at; i < end; i++) {
        *line += text[i] == '\n';
    }
    return end;
}

} // namespace

std::vector<Token> tokenize(std::string_view text)
{
    std::vector<Token> tokens;
    tokens.reserve(text.size() / 6);
    int line = 1;
    size_t at = 0;
    while (at < text.size()) {
        char c = text[at];
        size_t end = at + 1;
        if (c == '\n') {
            line++;
        } else if (c == '/' && at + 1 < text.size() && (text[at + 1] == '/' || text[at + 1] == '*')) {
            end = skip_comment(text, at, &line);
        } else if (is_word(c) ||
                   (c == '-' && at + 1 < text.size() && isdigit(static_cast<unsigned char>(text[at + 1])))) {
            end = word_end(text, at + (c == '-'));
            size_t dot = c == '.' ? text.find('.', at + 1) : std::string_view::npos; // ".reg.b32" is two directives
            end = dot < end ? dot : end;
            tokens.push_back({text.substr(at, end - at), line});
        } else if (c == '"') {
            end = text.find('"', at + 1);
            end = end == std::string_view::npos ? text.size() : end + 1;
            tokens.push_back({text.substr(at, end - at), line});
        } else if (!isspace(static_cast<unsigned char>(c))) {
            tokens.push_back({text.substr(at, 1), line});
        }
        at = end;
    }
    return tokens;
}

} // namespace gpusim::ptx
