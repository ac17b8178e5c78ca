"""Label selectors in the text form of `kubectl -l`: for requests to the API, and for objects in memory."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Self

_KEY = r'[A-Za-z0-9](?:[-A-Za-z0-9_./]*[A-Za-z0-9])?'
_VALUE = r'(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?'
_TERMS = re.compile(
    rf'\s*(?:!\s*(?P<absent>{_KEY})'
    rf'|(?P<key>{_KEY})(?:\s*(?P<sign>==?|!=|<|>)\s*(?P<value>{_VALUE})'
    rf'|\s+(?P<word>in|notin)\s*\((?P<values>\s*{_VALUE}\s*(?:,\s*{_VALUE}\s*)*)\))?'
    r')\s*(?:,|$)'
)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class _Term:
    key: str
    sign: str
    """One of ``exists``, ``absent``, ``in``, ``notin``, ``<``, ``>``."""
    values: tuple[str, ...] = ()

    def __str__(self) -> str:
        match self.sign:
            case 'exists':
                return self.key
            case 'absent':
                return f'!{self.key}'
            case 'in' | 'notin' if len(self.values) == 1:
                return f"{self.key}{'=' if self.sign == 'in' else '!='}{self.values[0]}"
            case 'in' | 'notin':
                return f"{self.key} {self.sign} ({','.join(self.values)})"
            case _:
                return f'{self.key}{self.sign}{self.values[0]}'

    def matches(self, labels: Mapping[str, str]) -> bool:
        value = labels.get(self.key)
        match self.sign:
            case 'exists' | 'absent':
                return (value is None) is (self.sign == 'absent')
            case 'in':
                return value in self.values
            case 'notin':
                # As in Kubernetes, objects without the label are included.
                return value not in self.values
            case _:
                limit = int(self.values[0])
                number = int(value) if value is not None and re.fullmatch(r'[-+]?\d+', value) else None
                return number is not None and (number > limit if self.sign == '>' else number < limit)


@dataclasses.dataclass(frozen=True, slots=True)
class LabelSelector:
    """A label selector. Two of them are equal if they have the same terms, in any order and spelling."""

    terms: frozenset[_Term]

    @classmethod
    def parse(cls, text: str) -> Self:
        """
        Parse the text of a selector, such as ``app=x,env notin (test,dev),!hidden``.

        Raises:
            ValueError: if it is not a selector, or has no terms.
        """
        terms: set[_Term] = set()
        position = 0
        while position < len(text) or not terms:
            found = _TERMS.match(text, position)
            if found is None:
                raise ValueError(
                    f"It is not a label selector: {text!r}. Examples of label selectors: 'app=x,env!=test', "
                    f"'app in (x,y)', 'app', '!app'."
                )
            terms.add(_read_term(found))
            position = found.end()
        if text.rstrip().endswith(','):
            raise ValueError(f"The label selector ends with a comma: {text!r}.")
        return cls(frozenset(terms))

    def __str__(self) -> str:
        return ','.join(str(term) for term in sorted(self.terms))

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Check whether the selector selects an object with these labels."""
        return all(term.matches(labels) for term in self.terms)


def _read_term(found: 're.Match[str]') -> _Term:
    sign, word = found['sign'], found['word']
    if found['absent'] is not None:
        return _Term(found['absent'], 'absent')
    if word is not None:
        return _Term(found['key'], word, tuple(sorted({value.strip() for value in found['values'].split(',')})))
    if sign is None:
        return _Term(found['key'], 'exists')
    if sign in ('<', '>'):
        if not re.fullmatch(r'\d+', found['value']):
            raise ValueError(f"Labels are compared by {sign!r} with whole numbers, not {found['value']!r}.")
        return _Term(found['key'], sign, (found['value'],))
    return _Term(found['key'], 'notin' if sign == '!=' else 'in', (found['value'],))
