//! The attribute `#[case]`, by which a conformance case registers itself where it is written.

use proc_macro::TokenStream;
use quote::quote;
use syn::{parse_macro_input, Expr, ExprLit, ItemFn, Lit, LitStr, Meta};

/// The parsed words of the attribute.
#[derive(Default)]
struct Words {
    own_flags: bool,
    liburing: bool,
    undisturbed: bool,
    since: Option<LitStr>,
    from: Option<LitStr>,
    until: Option<LitStr>,
    source: Option<LitStr>,
}

impl Words {
    fn add(&mut self, meta: &syn::meta::ParseNestedMeta) -> syn::Result<()> {
        match meta.path.get_ident().map(ToString::to_string).as_deref() {
            Some("own_flags") => self.own_flags = true,
            Some("liburing") => self.liburing = true,
            Some("undisturbed") => self.undisturbed = true,
            Some("since") => self.since = Some(meta.value()?.parse()?),
            Some("from") => self.from = Some(meta.value()?.parse()?),
            Some("until") => self.until = Some(meta.value()?.parse()?),
            Some("source") => self.source = Some(meta.value()?.parse()?),
            _ => {
                return Err(meta.error(
                    "expected own_flags, liburing, undisturbed, since = \"5.6\", from or until = \"7.3\", or source = \"...\"",
                ))
            }
        }
        Ok(())
    }
}

/// Registers a function as a case of its module's topic. The function's name states the claim. Its documentation, if
/// there is any, states it in more words.
///
/// - `own_flags`: it chooses its rings' setup flags itself. Without the word it makes them with `Context::ring`, and the
///   claim holds for every flag set.
/// - `liburing`: it calls liburing's functions, so it runs through that door only, and chooses its flags itself.
/// - `undisturbed`: the claim relies on more than io_uring promises, so it does not hold under chaos. Examples: a request
///   is issued at once, CQEs come in one order, a timer never races with the request that it ends.
/// - `since = "6.1"`: the first kernel on which it holds, if that is not the topic's.
/// - `from = "7.3"`, `until = "7.3"`: the kernel answers so from that release on, or did until then. `since` is for a
///   name that is new. These two are for an answer that changed: mostly there is one case with each.
/// - `source = "..."`: the source of the claim, if it is not the topic's.
#[proc_macro_attribute]
pub fn case(attribute: TokenStream, item: TokenStream) -> TokenStream {
    let mut words = Words::default();
    let parser = syn::meta::parser(|meta| words.add(&meta));
    parse_macro_input!(attribute with parser);
    let function = parse_macro_input!(item as ItemFn);
    let (name, claim) = (&function.sig.ident, documentation(&function));
    let undisturbed = words.undisturbed;
    let any_flags = !(words.own_flags || words.liburing);
    let door = match words.liburing {
        true => quote!(Some(crate::door::Door::Liburing)),
        false => quote!(None),
    };
    let optional = |text: &Option<LitStr>| match text {
        Some(text) => quote!(Some(#text)),
        None => quote!(None),
    };
    let (since, source) = (optional(&words.since), optional(&words.source));
    let (from, until) = (optional(&words.from), optional(&words.until));
    quote! {
        #function

        const _: () = {
            #[linkme::distributed_slice(crate::case::CASES)]
            static CASE: crate::case::Case = crate::case::Case {
                path: concat!(module_path!(), "::", stringify!(#name)),
                line: line!(),
                documentation: #claim,
                since: #since,
                from: #from,
                until: #until,
                source: #source,
                body: #name,
                any_flags: #any_flags,
                door: #door,
                undisturbed: #undisturbed,
            };
        };
    }
    .into()
}

/// The documentation of `function`, its lines joined.
fn documentation(function: &ItemFn) -> String {
    let lines = function.attrs.iter().filter_map(|attribute| match &attribute.meta {
        Meta::NameValue(pair) if pair.path.is_ident("doc") => match &pair.value {
            Expr::Lit(ExprLit { lit: Lit::Str(text), .. }) => Some(text.value()),
            _ => None,
        },
        _ => None,
    });
    lines.map(|line| line.trim().to_owned()).collect::<Vec<_>>().join(" ").trim().to_owned()
}
