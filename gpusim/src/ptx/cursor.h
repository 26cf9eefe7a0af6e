// Reading tokens one by one, with the first error kept.
#pragma once
#include "lexer.h"

#include <cstdlib>
#include <string>

namespace gpusim::ptx
{

class Cursor
{
  public:
    Cursor(const std::vector<Token> &tokens, size_t at, size_t end) : tokens_(tokens), at_(at), end_(end)
    {
    }
    bool done() const
    {
        return at_ >= end_ || !error_.empty();
    }
    std::string_view peek(size_t ahead = 0) const
    {
        return at_ + ahead < end_ ? tokens_[at_ + ahead].text : std::string_view();
    }
    std::string_view next()
    {
        return at_ < end_ ? tokens_[at_++].text : std::string_view();
    }
    bool accept(std::string_view text)
    {
        if (peek() != text) {
            return false;
        }
        at_++;
        return true;
    }
    void expect(std::string_view text)
    {
        if (!accept(text)) {
            fail("'" + std::string(text) + "' expected before '" + std::string(peek()) + "'");
        }
    }
    int64_t integer()
    {
        return strtoll(std::string(next()).c_str(), nullptr, 0);
    }
    void skip_past(std::string_view text)
    {
        while (at_ < end_ && next() != text) {
        }
    }
    // After an opening brace was read: behind the closing one that belongs to it.
    void skip_braces()
    {
        for (int depth = 1; at_ < end_ && depth > 0;) {
            std::string_view text = next();
            depth += text == "{";
            depth -= text == "}";
        }
    }
    void fail(const std::string &message)
    {
        if (error_.empty()) {
            error_ = "PTX line " + std::to_string(line()) + ": " + message;
        }
    }
    int line() const
    {
        return tokens_.empty() ? 0 : tokens_[at_ < end_ ? at_ : end_ - 1].line;
    }
    size_t position() const
    {
        return at_;
    }
    void seek(size_t at)
    {
        at_ = at;
    }
    const std::vector<Token> &tokens() const
    {
        return tokens_;
    }
    const std::string &error() const
    {
        return error_;
    }

  private:
    const std::vector<Token> &tokens_;
    size_t at_, end_;
    std::string error_;
};

} // namespace gpusim::ptx
