"""Finds people by what was typed: a user name in any case or way to write it, or an e-mail address."""

from collections.abc import Iterable
from typing import TypeVar

from django.contrib.auth.models import Group
from django.db.models import Q, QuerySet
from django.http import Http404

from portal.accounts.models import GroupName, PeopleQuerySet, User, same_key
from portal.names import may_be_name, name_key
from portal.refused import Refused

Row = TypeVar("Row", User, Group)


def find_person(typed: str, among: PeopleQuerySet, field: str = "username") -> User:
    """Return the user whom a name or an e-mail address means. Raises Refused without one, or when it is ambiguous."""
    found = among.matching(typed)
    if not found:
        raise Refused("There is no user with this name or e-mail address. Ask an admin to invite them.", field=field)
    if len(found) > 1:
        raise Refused(_ambiguous(typed, found), field=field)
    return found[0]


def people_called(names: Iterable[str], among: PeopleQuerySet) -> list[User]:
    """Return the users of a list of user names, in one query. Raises Refused for a name without one, or with several."""
    wanted = {name: name_key(name) for name in names}
    by_key: dict[str, list[User]] = {}
    for user in among.filter(same_key(*(wanted[name] for name in wanted if may_be_name(name)))):
        by_key.setdefault(name_key(user.username), []).append(user)
    people, unknown = {}, []
    for name, key in wanted.items():
        rows = by_key.get(key, [])
        found = [user for user in rows if user.username == name] or rows
        if len(found) > 1:
            raise Refused(_ambiguous(name, found))
        if found:
            people[found[0].pk] = found[0]
        else:
            unknown.append(name)
    if unknown:
        raise Refused(f"There is no user called {', '.join(sorted(unknown))}.")
    return list(people.values())


def only_one(found: list[Row]) -> Row:
    """Return the row that the path of a request names. Answers 404 without one, and 400 when there are several."""
    if not found:
        raise Http404
    if len(found) > 1:
        raise Refused(f"This may mean several: {', '.join(sorted(str(row) for row in found))}. Write the name exactly.")
    return found[0]


def _ambiguous(typed: str, found: Iterable[User]) -> str:
    names = ", ".join(sorted(user.username for user in found))
    return f"“{typed}” may mean several users: {names}. Type the user name exactly."


def is_name_taken(name: str) -> bool:
    """Return whether a user has this name in some case, or this e-mail address: others would mistake one for the other."""
    return bool(User.objects.matching(name))


def groups_called(name: str, among: QuerySet[Group] | None = None) -> list[Group]:
    """Return the groups that a name means: the one of exactly this name, otherwise all of the same in another case."""
    if not may_be_name(name):
        return []
    key = name_key(name.strip())
    keys = GroupName.objects.filter(same_key(key)).values("group")
    found = (Group.objects.all() if among is None else among).filter(Q(pk__in=keys) | Q(name=name)).order_by("pk")
    rows = [group for group in found if name_key(group.name) == key]
    return [group for group in rows if group.name == name.strip()] or rows
